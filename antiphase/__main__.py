"""``python -m antiphase``."""

from antiphase.cli import main

if __name__ == "__main__":
    main()
