import torch

from mpsae import TopKSAE


def test_the_encoder_starts_at_the_atoms_and_reads_the_centred_input():
    x = torch.randn(20, 6)
    for centred in (True, False):
        sae = TopKSAE(6, 12, 3, centred=centred)
        assert torch.equal(sae.encoder, sae.atoms)
        assert sae.encoder.data_ptr() != sae.atoms.data_ptr()
        with torch.no_grad():
            sae.bias.copy_(torch.randn(6))
            sae.encoder_bias.copy_(torch.randn(12))
        expected = (x - sae.bias if centred else x) @ sae.encoder.T + sae.encoder_bias
        torch.testing.assert_close(sae(x).pre, expected)
