"""``python -m ha_engine`` is ``ha-engine``."""

from ha_engine.cli import main

if __name__ == "__main__":
    main()
