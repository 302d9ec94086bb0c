"""The `teka` command, which `python -m teka` runs too."""

import sys


def main() -> int:
    """Run the `teka` command and return its exit code.

    The imports run inside this function, because they take seconds and may fail. The exit code is 2
    if a required package is missing, and 130 after Ctrl-C.
    """
    try:
        from teka.cli import main

        return main()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"teka: error: {error.name} is not installed; pip install 'teka[train,report]'\n"
        )
        return 2
    except KeyboardInterrupt:  # the imports take a few seconds
        sys.stderr.write("\ninterrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
