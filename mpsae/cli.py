"""The command `mpsae`; each subcommand calls one function of the library."""

from __future__ import annotations

import sys
from pathlib import Path

import mpsae


def demo(out: Path = Path("demo"), updates: int = 15_000, similarity: float = 0.2, seed: int = 0) -> None:
    """Train on a hierarchy whose answer is known, and write a report of what was found.

    Args:
        out: Folder for the report and the trained SAE.
        updates: Optimiser updates, 200 inputs each.
        similarity: Cosine between concepts of one level, in [0, 1).
        seed: Seed of the tree, the start and the inputs.
    """
    from mpsae import demo, plots

    path = demo.write(out, updates=updates, similarity=similarity, seed=seed)
    if plots.missing():
        print(f"The report has no pictures: {plots.missing()}")
    print(f"The report is at {path}")


def main() -> None:
    """The entry point of the command."""
    import tyro

    if sys.argv[1:] == ["--version"]:
        print(f"mpsae {mpsae.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"demo": demo},
            prog="mpsae",
            description="Sparse autoencoders that find hierarchical structure in neural representations. "
            "`mpsae --version` tells which this is.",
        )
    except (ValueError, OSError) as error:
        sys.exit(f"mpsae: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
