"""`python -m tests.faults.soak MINUTES`: random schedules of faults, one after another. Those that fail are kept."""

import os
import random
import subprocess
import sys
from pathlib import Path
from time import monotonic

_TEST = Path(__file__).with_name("test_random_schedules.py")
_SEEDS = Path(__file__).with_name("seeds.txt")


def soak(minutes: float) -> int:
    """How many schedules have failed."""
    until, tried, failed = monotonic() + minutes * 60, 0, 0
    while monotonic() < until:
        seed = random.randrange(1_000_000)
        command = (sys.executable, "-m", "pytest", "--quiet", "--no-cov", str(_TEST))
        environment = os.environ | {"FAULTS_SEED": str(seed)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        tried += 1
        if done.returncode:
            failed += 1
            with _SEEDS.open("a") as seeds:
                seeds.write(f"{seed}\n")
            print(done.stdout)
        print(f"{tried} schedules, {failed} violations (seed {seed})", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(soak(float(sys.argv[1])) > 0)
