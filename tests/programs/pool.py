# A pool of processes, each with its share of the parent's data and data of its own. Prints a digest
# of what all of them found.
import hashlib
import multiprocessing
import sys

COUNT, WORKERS, ROUNDS = 60_000, 4, 3


def document(number, version):
    return f"document {number} at {version}: " + "fields of words " * (number % 7 + 1) + str(number * 2654435761 % 4294967296)


data = {number: document(number, 0) for number in range(COUNT)}
own = {}


def work(task):
    first, last, version = task
    digest = hashlib.sha256()
    for number in range(first, last):
        text = data[number]
        if text != document(number, 0):
            raise SystemExit(f"document {number} is {text!r}")
        own[number] = document(number, version)
        digest.update(text.encode())
    for number, text in own.items():
        if text.split(": ", 1)[1] != document(number, 0).split(": ", 1)[1]:
            raise SystemExit(f"own document {number} is {text!r}")
    return first, digest.hexdigest(), [own[number] for number in range(first, last, 500)]


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    result = hashlib.sha256()
    with multiprocessing.Pool(WORKERS, maxtasksperchild=6) as pool:
        for version in range(1, ROUNDS + 1):
            tasks = [(first, first + COUNT // 20, version) for first in range(0, COUNT, COUNT // 20)]
            for answer in pool.imap(work, tasks):
                result.update(repr(answer).encode())
            # The parent replaces what it has by the same anew, while the next processes are forked.
            for number in range(0, COUNT, 3):
                data[number] = document(number, 0)
    if any(text != document(number, 0) for number, text in data.items()):
        raise SystemExit("the parent's documents changed")
    print(sys.argv[1], result.hexdigest())
