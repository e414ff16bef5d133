"""What a page holds, and a record of corruptions for it."""

import json
import re
from pathlib import Path
from typing import Any

from generalist import Run
from generalist.core.files import sealed


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def write_corruptions(folder: Path, **changed: Any) -> Path:
    """A record as the page expects it."""
    table = {"fog": [90.0, 80.0, 70.0, 60.0, 50.0], "jpeg_compression": [95.0, 94.0, 93.0, 92.0, 91.0]}
    path = Run(folder).record_file("ood")
    path.write_text(
        json.dumps(sealed({"suite": "ood", "images": 20, "corruptions": table, "flip_rate": 0.1} | changed))
    )
    return path
