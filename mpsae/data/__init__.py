"""What SAEs are trained on."""
