"""Build every part of the test cluster that is not there yet.

python -m tests.e2e.parts [--prune]
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.e2e.parts import api_schemas, cache, catalogue, image_archives, promtool


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.e2e.parts", description=__doc__)
    parser.add_argument("--prune", action="store_true", help="also remove what no recipe names")
    arguments = parser.parse_args()
    started = time.monotonic()
    try:
        parts = (
            *catalogue.every_part(),
            image_archives.base_images(),
            image_archives.kube_scheduler_image(),
            api_schemas.api_schemas(),
            promtool.promtool(),
        )
        for part in parts:
            catalogue.provide(part)
    except cache.PartError as error:
        sys.exit(f"parts: {error}")
    if arguments.prune:
        cache.prune({part.folder_name for part in parts}, cache.default_folder())
    minutes = (time.monotonic() - started) / 60
    cache.say(f"{len(parts)} parts are there, in {cache.default_folder()} ({minutes:.1f} min)")


if __name__ == "__main__":
    main()
