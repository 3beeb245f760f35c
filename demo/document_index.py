"""A small search engine in memory: generated JSON documents, an index, then skewed lookups and searches.

Plain CPython with its standard library. Everything comes from one seed, so standard output is the same in every run: a
checksum over all documents built and all answers given. Speed goes to standard error.
"""

import argparse
import array
import gc
import hashlib
import json
import os
import random
import sys
import time

STEMS = """able account act add age air allow answer apply area arm ask bank bar base bear beat begin book born break bring
build burn buy call camp care carry case catch cause change charge check child choose city claim class clean clear climb
close coast code cold colour come cook cool copy cost count course cover cross cry cut dance dark date deal decide deep
delay design direct doubt draw dream dress drink drive drop earn east edge eat end enjoy enter equal even event exact
explain face fact fail fall farm fast fear feed feel field fight fill final find fine finish fire fish fit fix floor flow
fly fold follow force form forward free fresh front fruit full garden gather general gift glass gold grain grant great
green ground group grow guard guess guide hand hang harbour hard heat heavy help hold home hope house human hunt idea iron
island join journey judge jump keep kind know land language large late laugh lead learn leave letter level lift light
limit line list listen live load local lock long look loss low machine major make manage map mark market match matter mean
measure meet member memory mend mind model money month morning mountain move music name nation need north note number offer
office open order own page paint pair paper part pass pay people pick place plain plan plant play point port post pound
power press price print prove pull push question quick quiet race rain raise range reach read ready reason record region
remain repair reply report rest return rich ride rise river road rock roll room root round rule run safe sail save school
season seat second see seed sell send sense serve settle shape share sharp shine ship shop shore short show shut side sign
silver simple sing size sky sleep slow small smoke snow soft soil sound south space speak spend spread spring stage stand
start state station stay steel step stock stone stop store storm story strange stream street strong study sugar summer sun
supply support surface swim table take talk taste teach tell test thick thin think throw tide time top total touch town
trade train travel tree true trust turn value view visit voice vote wait walk wall want warm wash watch water wave wear
weather week weigh west wheel white wide wild win wind winter wish wonder wood word work world write yard year young""".split()
ENDINGS = ("", "s", "ed", "ing", "er", "ers", "ly", "ness", "ment", "able", "ful", "less", "ward", "ish")
FIRST_NAMES = """Ada Alan Barbara Claude Dennis Donald Edsger Frances Grace Hedy Ida Jean John Katherine Ken Leslie Lynn
Margaret Mary Niklaus Radia Robin Rosa Sophie Tim Tony""".split()
LAST_NAMES = """Abel Brandt Castro Dvorak Eriksen Fontaine Garcia Haddad Ivanov Jansen Kowalski Larsen Moreau Nakamura
Okafor Petrov Quispe Rossi Santos Tanaka Ueda Varga Weber Xu Yilmaz Zhang""".split()
CITIES = """Accra Bergen Bogota Cairo Cork Dakar Ghent Hanoi Izmir Jena Kyoto Lagos Leeds Lima Lyon Nantes Oslo Porto Quito
Riga Seoul Tunis Turin Utrecht Vienna Zagreb""".split()
SECTIONS = ("business", "culture", "health", "local", "opinion", "science", "sport", "technology", "travel", "world")

SENTENCES = 20_000
# Of a document; all are searched.
SENTENCES_IN_A_BODY = 7
COMMENTS = 14
RESULTS_SHOWN = 10
RESULTS_SEARCHED = 500


def zipf(rng, size, count, exponent=0.99):
    """`count` numbers below `size`, small ones often: rank r with weight 1 / (r + 1)^exponent."""
    total, cumulative = 0.0, []
    for rank in range(size):
        total += (rank + 1) ** -exponent
        cumulative.append(total)
    return rng.choices(range(size), cum_weights=cumulative, k=count)


class Language:
    """Sentences of a made-up English, with the words of each."""

    def __init__(self, rng):
        self.words = [stem + ending for ending in ENDINGS for stem in STEMS]
        # Rare words are not all of the same ending.
        rng.shuffle(self.words)
        lengths = [rng.randrange(4, 12) for _ in range(SENTENCES)]
        stream = iter(zipf(rng, len(self.words), sum(lengths)))
        self.sentences, self.terms = [], []
        for length in lengths:
            numbers = [next(stream) for _ in range(length)]
            self.sentences.append(" ".join(self.words[n] for n in numbers).capitalize() + ".")
            self.terms.append(frozenset(numbers))


class Library:
    """All documents as JSON text, and what finds them: by number, by author, by word."""

    def __init__(self):
        self.documents = {}
        self.titles = {}
        self.by_author = {}
        self.postings = []

    def build(self, rng, language, count):
        digest = hashlib.blake2b(digest_size=16)
        sentences, terms = language.sentences, language.terms
        postings = self.postings = [array.array("I") for _ in language.words]
        people = [f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES]
        times = [f"20{n % 16 + 10}-{n % 12 + 1:02}-{n % 28 + 1:02}T{n % 24:02}:{n % 60:02}:00Z" for n in range(10_000)]
        for number in range(count):
            chosen = rng.choices(range(SENTENCES), k=SENTENCES_IN_A_BODY)
            author, *readers = rng.choices(people, k=1 + COMMENTS)
            published, *moments = rng.choices(times, k=1 + COMMENTS)
            remarks = rng.choices(sentences, k=COMMENTS)
            section = rng.choice(SECTIONS)
            title = sentences[chosen[0]][:60].rstrip(" .")
            text = json.dumps({
                "id": number,
                "title": title,
                "author": {"name": author, "profile": f"/people/{author.lower().replace(' ', '-')}", "verified": True},
                "section": section,
                "url": f"/{section}/{published[:10]}/{number}",
                "language": "en",
                "licence": "CC BY-SA 4.0",
                "status": "published",
                "published": published,
                "updated": published,
                "place": {"city": rng.choice(CITIES), "lat": round(rng.uniform(-60, 70), 4), "lon": round(rng.uniform(-180, 180), 4)},
                "reads": rng.randrange(100_000),
                "uuid": f"{rng.getrandbits(128):032x}",
                "body": " ".join([sentences[s] for s in chosen]),
                "comments": [
                    {"reader": reader, "written": moment, "votes": len(remark) % 17, "reply_to": None, "edited": False, "text": remark}
                    for reader, moment, remark in zip(readers, moments, remarks)
                ],
            }).encode()
            digest.update(text)
            self.documents[number] = text
            self.titles[number] = title
            self.by_author.setdefault(author, array.array("I")).append(number)
            for term in frozenset().union(*[terms[s] for s in chosen]):
                postings[term].append(number)
        return digest.hexdigest()

    def lookup(self, number):
        document = json.loads(self.documents[number])
        return f"{document['id']} {document['author']['name']} {document['reads']} {len(document['comments'])}"

    def search(self, first, second):
        """The newest documents with both words, among the newest with each."""
        newest = [self.postings[word][-RESULTS_SEARCHED:] for word in (first, second)]
        found = sorted(set(newest[0]).intersection(newest[1]), reverse=True)[:RESULTS_SHOWN]
        return f"{len(found)} " + " ".join(self.titles[number] for number in found)


def serve(rng, library, language, operations):
    """Seven lookups to one search. Popular documents lie anywhere; popular words are the common ones."""
    digest = hashlib.blake2b(digest_size=16)
    count = len(library.documents)
    place = list(range(count))
    rng.shuffle(place)
    numbers = iter(zipf(rng, count, operations))
    words = iter(zipf(rng, len(language.words), 2 * operations))
    for operation in range(operations):
        if operation % 8 == 7:
            answer = library.search(next(words), next(words))
        else:
            answer = library.lookup(place[next(numbers)])
        digest.update(answer.encode())
    return digest.hexdigest()


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--documents", type=int, default=140_000)
    arguments.add_argument("--operations", type=int, default=200_000)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()

    # As large in-memory services do: no pass over all objects again and again.
    gc.disable()
    rng = random.Random(options.seed)
    start = time.monotonic()
    language = Language(rng)
    library = Library()
    built = library.build(rng, language, options.documents)
    build_s = time.monotonic() - start
    print(f"built {options.documents} documents, checksum {built}", flush=True)

    start = time.monotonic()
    served = serve(rng, library, language, options.operations)
    serve_s = time.monotonic() - start
    print(f"served {options.operations} operations, checksum {served}", flush=True)
    speed = {"build_s": round(build_s, 2), "serve_s": round(serve_s, 2), "operations_per_s": round(options.operations / serve_s)}
    print(json.dumps(speed), file=sys.stderr, flush=True)
    # As a service ends: without freeing a hundred thousand objects one by one.
    os._exit(0)


if __name__ == "__main__":
    main()
