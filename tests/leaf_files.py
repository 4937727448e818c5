"""Files in the format of LEAF, for tests."""

import gzip
import json


def of_leaf(**users):
    """The text of a file: of each user the inputs and the labels."""
    held = {user: {"x": x, "y": y} for user, (x, y) in users.items()}
    counts = [len(y) for _, y in users.values()]
    return json.dumps({"users": list(users), "num_samples": counts, "user_data": held})


def leaf_file(path, **users):
    path.parent.mkdir(parents=True, exist_ok=True)
    text = of_leaf(**users).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
