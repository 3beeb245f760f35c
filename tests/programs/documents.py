"""Builds and verifies an index of generated documents; prints what it found and a digest of everything it read."""
import hashlib
import json
import random

random.seed(7)
WORDS = ["alpha", "beta", "gamma", "delta"]


def document(number):
    tags = [random.choice("abcdefgh") * 8 for _ in range(5)]
    return json.dumps({"id": number, "tags": tags, "body": " ".join(random.choice(WORDS) for _ in range(60))})


documents = [document(number) for number in range(50_000)]
index = {}
for number, text in enumerate(documents):
    for word in set(text.split()):
        index.setdefault(word, []).append(number)
digest = hashlib.sha256()
for _ in range(50_000):
    digest.update(documents[random.randrange(len(documents))].encode())
for number, text in enumerate(documents):
    assert json.loads(text)["id"] == number
    digest.update(text.encode())
for word in sorted(index):
    digest.update(f"{word} {len(index[word])} {index[word][:50]}".encode())
print(len(documents), len(index), digest.hexdigest())
