"""What redaction costs, how many planted secrets survive it, and what it takes for secrets that are none.

    python -m tests.bench.bench_redaction [FILE ...]

Times are of the processor, the best of several rounds, for 10 KB. Files are JSON of conversations: hits are listed.
"""

from __future__ import annotations

import json
import random
import sys
import sysconfig
import time
import uuid
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

from ratchet.core.rules.redaction import redact
from tests.support.secret_corpus import corpus, every_plant

show = partial(print, flush=True)
ROUNDS = 15
LINE = (
    "Hi, my order #W2378156 has not arrived. I paid with my card on 2024-05-15 at 15:00, could you check the status?",
    "I understand. To find your account I need your user id or the name and zip code on the order, please.",
    "It is yusuf_rossi_9620, zip code 19122. The key thing for me: it must be here by Friday, I have no password.",
    "Thank you. I see order #W2378156 with a mechanical keyboard (item 1151293680, $272.33) and a smart thermostat.",
)


def dialogue(size: int = 10_240) -> Any:
    """Messages of about so many bytes."""
    messages: list[Any] = []
    while len(json.dumps(messages)) < size:
        content = " ".join(LINE[(len(messages) + step) % len(LINE)] for step in range(6))
        messages.append({"role": ("user", "assistant")[len(messages) % 2], "content": content})
    return messages


def ids(size: int = 10_240) -> str:
    """JSON full of ids, as a tool answers."""
    generator = random.Random(1)
    rows: list[Any] = []
    while len(json.dumps(rows)) < size:
        rows.append(
            {
                "id": str(uuid.UUID(int=generator.getrandbits(128))),
                "order_id": f"#W{generator.randrange(10**7):07}",
                "item_id": str(generator.randrange(10**9, 10**10)),
                "sha": f"{generator.getrandbits(160):040x}",
                "price": generator.randrange(10**5) / 100,
                "at": generator.randrange(10**12, 10**13),
                "payment_id": f"credit_card_{generator.randrange(10**7)}",
                "tracking": [f"{generator.randrange(10**12):012}", str(generator.randrange(10**15, 10**16))],
            }
        )
    return json.dumps(rows)


def milliseconds(value: Any) -> float:
    """Processor time of one search, per 10 KB."""
    size = len(value if isinstance(value, str) else json.dumps(value))
    best = min(_once(value) for _ in range(ROUNDS))
    return best * 1e3 * 10_240 / size


def _once(value: Any) -> float:
    started = time.process_time()
    redact(value)
    return time.process_time() - started


def main() -> None:
    """Print all figures."""
    library = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    source = "\n".join(path.read_text(errors="replace") for path in library[:12])[:102_400]
    numbers = " ".join(str(random.Random(2).randrange(10**6)) for _ in range(1_600))
    for name, value in {"dialogue": dialogue(), "JSON of ids": ids(), "Python": source, "numbers": numbers}.items():
        show(f"{name:12} {milliseconds(value):6.2f} ms for 10 KB")
    for name, plants in {"corpus": corpus(), "every plant": every_plant()}.items():
        left = [plant.label for plant in plants if _survives(plant.value, plant.traces)]
        show(f"{name}: {len(left)} of {len(plants)} survive", *left[:200], sep="\n  ")
    changed = {path.name: redact(path.read_text(errors="replace")) for path in library}
    hits = {name: left.counts for name, left in changed.items() if left.counts}
    kinds: Counter[str] = sum((Counter(counts) for counts in hits.values()), Counter())
    show(f"standard library: {len(hits)} of {len(library)} files changed, {dict(kinds)}")
    for file in sys.argv[1:]:
        show(f"{file}: {redact(json.loads(Path(file).read_text())).counts}")


def _survives(value: Any, traces: tuple[str, ...]) -> bool:
    left = json.dumps(redact(value).value, ensure_ascii=False)
    spelled = json.dumps(left, ensure_ascii=False)
    return any(trace in left or trace in spelled for trace in traces)


if __name__ == "__main__":
    main()
