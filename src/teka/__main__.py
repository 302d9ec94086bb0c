"""The `teka` command, which `python -m teka` runs too."""

import sys


def main() -> int:
    """Run the command and return its exit code, which is 2 if a required package is missing."""
    try:
        from teka.cli import main
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"teka: error: {error.name} is not installed; pip install 'teka[train,report]'\n"
        )
        return 2
    return main()


if __name__ == "__main__":
    sys.exit(main())
