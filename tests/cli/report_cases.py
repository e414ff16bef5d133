"""What a page holds."""

import json
import re
from pathlib import Path
from typing import Any


def page_data(path: Path) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', path.read_text(), re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found.group(1))
    return data


CORRUPTIONS = {
    "images": 20,
    "corruptions": {"fog": [90, 80, 70, 60, 50], "jpeg_compression": [95, 94, 93, 92, 91]},
    "extra_corruptions": {"spatter": [50, 40, 30, 20, 10]},
    "flip_rate": 0.1,
}
