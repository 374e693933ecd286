"""``python -m concrete_kmeans`` is ``ckm``."""

from concrete_kmeans.cli import main

if __name__ == "__main__":
    main()
