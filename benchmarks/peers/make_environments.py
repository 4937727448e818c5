"""An environment for each contestant that is not fedax: python
benchmarks/peers/make_environments.py [--into FOLDER] [NAME ...].

pip's own settings hold. PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu saves gigabytes
where there is no GPU."""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
NAMES = ("torch", "flower", "pfl", "fedlab", "fedjax")


def make(name, folder):
    """A fresh environment; whether pip could fill it."""
    print(f"{name}: {folder / name}", flush=True)
    venv.create(folder / name, clear=True, with_pip=True)
    command = [
        folder / name / "bin" / "python",
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    return (
        subprocess.run(
            [*command, "--requirement", HERE / f"requirements-{name}.txt"], check=False
        ).returncode
        == 0
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}; all by default"
    )
    parser.add_argument("--into", type=Path, default=HERE / ".environments")
    given = parser.parse_args()
    if unknown := set(given.names) - set(NAMES):
        parser.error(f"no such environment: {', '.join(sorted(unknown))}")
    failed = [name for name in given.names or NAMES if not make(name, given.into)]
    sys.exit(f"pip failed for {', '.join(failed)}" if failed else 0)
