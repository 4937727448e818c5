"""The long form, `make faults`: a table of kills by engine, how many continued to the same bits,
and of faults by rank.

python tests/faults [--kills 100] [--faults 30]
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from attacks import FAULTS, KINDS, LIMIT, OF_RANK_0, complaint, faulty, kill_and_resume, straight


def kills(kind, count):
    begun = time.monotonic()
    equal = 0
    with tempfile.TemporaryDirectory() as folder:
        expected = straight(kind, Path(folder))
        for number in range(count):
            try:
                same = kill_and_resume(kind, number, Path(folder)) == expected
            except Exception as error:
                print(f"{kind}, kill {number}: {type(error).__name__}: {error}", flush=True)
                same = False
            equal += same
    print(
        f"{kind:12} {count:6} kills {equal:6} equal {time.monotonic() - begun:8.0f} s", flush=True
    )
    return count - equal


def faults(count):
    begun = time.monotonic()
    bad = 0
    slowest = 0.0
    cases = [(fault, 0) for fault in OF_RANK_0]
    cases += [(fault, (place + 1) % 4) for place, fault in enumerate(FAULTS)]
    cases += [
        (fault, rank)
        for rank in (0, 3, 1, 2)
        for fault in ("exception", "bad data", "killed", "learning rate")
    ]
    for fault, rank in cases[:count]:
        with tempfile.TemporaryDirectory() as folder:
            found = faulty(fault, rank, Path(folder))
        slowest = max(slowest, found.seconds)
        words = complaint(fault, rank, found)
        bad += bool(words)
        print(
            f"  {fault:18} on rank {rank}: {found.seconds:5.1f} s "
            f"{words or 'ended with the reason'}",
            flush=True,
        )
    total = min(count, len(cases))
    print(
        f"{'MPI faults':12} {total:6} {total - bad:6} ended within {LIMIT:.0f} s with the "
        f"reason, slowest {slowest:.1f} s,"
    )
    print(f"{'':12} {time.monotonic() - begun:8.0f} s in all", flush=True)
    return bad


def main():
    parser = argparse.ArgumentParser(description="Attack runs of every engine.")
    parser.add_argument("--kills", type=int, default=100, help="in all, spread over the engines")
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--only", choices=KINDS, help="only this engine's kills")
    given = parser.parse_args()
    kinds = [given.only] if given.only else list(KINDS)
    share = [given.kills // len(kinds) + (k < given.kills % len(kinds)) for k in range(len(kinds))]
    bad = sum(kills(kind, count) for kind, count in zip(kinds, share, strict=True) if count)
    sys.exit(1 if bad + faults(given.faults) else 0)


if __name__ == "__main__":
    main()
