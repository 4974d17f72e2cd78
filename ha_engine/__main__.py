"""``python -m ha_engine`` runs the same program as the command ``ha-engine``."""

from ha_engine.cli import main

if __name__ == "__main__":
    main()
