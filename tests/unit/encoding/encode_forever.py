"""Run as a process of its own: encodes slowly in the folder it is given, until it is killed."""

import sys
import time
from pathlib import Path

from plumbing import open_world

if __name__ == "__main__":
    world = open_world(Path(sys.argv[1]), seconds=0.02)
    world.encoder.start()
    time.sleep(60)
