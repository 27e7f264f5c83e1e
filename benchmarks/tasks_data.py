"""Data of the study of tasks: pairs to rank and multi-domain requests from CLINC150, and slots from SNIPS.

Splits share no queries. The documents of pairs are the training queries, like an index.
"""

from __future__ import annotations

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hydrant.data.examples import Examples
from hydrant.data.label_encoding import IGNORED
from hydrant.tasks import TaskName
from study import Data

SPLITS = ("train", "validation", "calibration", "test", "ood_test")

Query = tuple[str, str]  # Text and intent


@dataclass(frozen=True)
class TaskData:
    """Splits and labels of a task."""

    task: TaskName
    data: Data  # ``validation`` selects epochs; OOD data choose nothing
    calibration: Examples  # fit thresholds and temperatures
    labels: tuple[str, ...]  # names of the model's outputs, in order


@dataclass(frozen=True)
class Sizes:
    """Examples of each split; for pairs, number of queries."""

    train: int
    validation: int
    calibration: int
    test: int
    ood_test: int

    def scaled(self, share: float) -> Sizes:
        """Share of each size, at least 20."""
        return Sizes(**{name: max(20, round(share * count)) for name, count in vars(self).items()})


def read_queries(path: Path) -> list[Query]:
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"], row["label"]) for row in csv.DictReader(file)]


def clinc150(folder: Path) -> dict[str, list[Query]]:
    """:data:`SPLITS` → queries; half of the validation queries are for calibration."""
    files = {"train": "train", "validation": "val", "test": "test", "ood_test": "oos_test"}
    queries = {split: read_queries(folder / f"{name}.csv") for split, name in files.items()}
    return {**queries, "validation": queries["validation"][::2], "calibration": queries["validation"][1::2]}


def several_domains(folder: Path, sizes: Sizes, seed: int = 0) -> TaskData:
    """Multi-label data: texts of one to three requests of different domains; OOD texts join out-of-scope requests."""
    splits = clinc150(folder)
    rng = np.random.default_rng(seed)
    examples = {
        split: _joined(splits[split], getattr(sizes, split), rng, apart=split != "ood_test", source=split)
        for split in SPLITS
    }
    return _task_data("multi_label", examples, DOMAINS)


def _joined(queries: Sequence[Query], count: int, rng: np.random.Generator, apart: bool, source: str) -> Examples:
    texts, labels = [], np.zeros((count, len(DOMAINS)), bool)
    for row in range(count):
        wanted = int(rng.integers(1, 4))
        chosen: list[str] = []
        seen: set[str] = set()
        while len(chosen) < wanted:
            text, intent = queries[int(rng.integers(len(queries)))]
            domain = DOMAIN_OF.get(intent, text)  # out-of-scope texts are their own domain
            if domain not in seen:
                seen.add(domain)
                chosen.append(text)
        texts.append(" and ".join(chosen))
        if apart:
            labels[row, [DOMAINS.index(domain) for domain in seen]] = True
    return Examples(texts, labels if apart else None, source)


Mix = tuple[int, int, int]  # Documents of a query: same intent, same domain, other domains

LEARNED, RANKED = (1, 2, 1), (2, 5, 3)


def query_pairs(folder: Path, sizes: Sizes, seed: int = 0) -> TaskData:
    """Pairs of queries, relevant (1) if they share the intent; with documents :data:`LEARNED` or :data:`RANKED`.

    Out-of-scope queries get the documents of a random intent.
    """
    splits = clinc150(folder)
    index = _Index(splits["train"])
    rng = np.random.default_rng(seed)
    examples = {
        split: index.pairs(splits[split], getattr(sizes, split), rng, LEARNED if split == "train" else RANKED, split)
        for split in SPLITS
    }
    return _task_data("score", examples, ("relevance",))


class _Index:
    def __init__(self, documents: Sequence[Query]) -> None:
        self.documents = list(documents)
        self.intents: dict[str, list[int]] = defaultdict(list)
        for place, (_, intent) in enumerate(documents):
            self.intents[intent].append(place)
        self.names = sorted(self.intents)

    def pairs(self, queries: Sequence[Query], count: int, rng: np.random.Generator, mix: Mix, source: str) -> Examples:
        inputs, labels = [], []
        for place in rng.permutation(len(queries))[:count]:
            text, intent = queries[place]
            in_scope = intent in self.intents
            like = intent if in_scope else self.names[int(rng.integers(len(self.names)))]
            for document, relevant in self._drawn(text, like, mix, rng):
                inputs.append((text, document))
                labels.append(float(relevant))
        return Examples(inputs, np.array(labels) if source != "ood_test" else None, source)

    def _drawn(self, query: str, intent: str, mix: Mix, rng: np.random.Generator) -> list[tuple[str, bool]]:
        domain = DOMAIN_OF[intent]
        near = [name for name in self.names if DOMAIN_OF[name] == domain and name != intent]
        far = [name for name in self.names if DOMAIN_OF[name] != domain]
        chosen: dict[str, bool] = {}
        for names, wanted in zip(([intent], near or far, far or near), mix, strict=True):
            start = len(chosen)
            while len(chosen) < start + wanted:
                name = names[int(rng.integers(len(names)))]
                text = self.documents[self.intents[name][int(rng.integers(len(self.intents[name])))]][0]
                if text != query and text not in chosen:
                    chosen[text] = name == intent
        order = rng.permutation(len(chosen))  # ties must not reveal relevance
        drawn = list(chosen.items())
        return [drawn[place] for place in order]


KNOWN = ("AddToPlaylist", "BookRestaurant", "GetWeather", "PlayMusic", "SearchScreeningEvent")
"""Intents of SNIPS whose slots the tagger learns."""

STRANGE = ("RateBook", "SearchCreativeWork")  # OOD intents

Sentence = tuple[list[str], list[str]]  # Words and tags


def slots(folder: Path, sizes: Sizes, seed: int = 0) -> TaskData:
    """Slots of requests as tags of words: the SNIPS benchmark of 2017 (Coucke et al. 2018, CC0)."""
    rng = np.random.default_rng(seed)
    id_sentences = distinct(sentence for intent in KNOWN for sentence in read_intent(folder, intent))
    ood_sentences = distinct(sentence for intent in STRANGE for sentence in read_intent(folder, intent))
    texts = {_text(sentence) for sentence in id_sentences}
    ood_sentences = [sentence for sentence in ood_sentences if _text(sentence) not in texts]
    kinds = sorted({tag[2:] for _, tags in id_sentences for tag in tags if tag != "O"})
    names = ("O", *(f"{prefix}-{kind}" for kind in kinds for prefix in "BI"))
    order, start, splits = rng.permutation(len(id_sentences)), 0, {}
    for split in SPLITS[:-1]:
        count = getattr(sizes, split)
        splits[split] = _tagged([id_sentences[place] for place in order[start : start + count]], names, split)
        start += count
    drawn = [ood_sentences[place] for place in rng.permutation(len(ood_sentences))[: sizes.ood_test]]
    splits["ood_test"] = Examples([words for words, _ in drawn], None, "ood_test")
    return _task_data("tokens", splits, names)


def read_intent(folder: Path, intent: str) -> list[Sentence]:
    """All requests of an intent; validation files are UTF-8 or Latin-1."""
    sentences = []
    for name in (f"train_{intent}_full.json", f"validate_{intent}.json"):
        raw = (folder / intent / name).read_bytes()
        try:
            text = raw.decode("utf-8")
        except UnicodeDecodeError:
            text = raw.decode("latin-1")
        sentences += [tagged_words(row["data"]) for row in json.loads(text)[intent]]
    return [sentence for sentence in sentences if sentence[0]]


def tagged_words(parts: Sequence[Mapping[str, str]]) -> Sentence:
    """Words and tags of a request's parts; parts with an ``entity`` are slots."""
    words: list[str] = []
    tags: list[str] = []
    for part in parts:
        for place, word in enumerate(re.findall(r"\w+|[^\w\s]", part["text"])):
            words.append(word)
            tags.append(f"{'BI'[place > 0]}-{part['entity']}" if "entity" in part else "O")
    return words, tags


def distinct(sentences: Iterable[Sentence]) -> list[Sentence]:
    """Sentences without case-insensitive duplicates."""
    by_text: dict[str, Sentence] = {}
    for sentence in sentences:
        by_text.setdefault(_text(sentence), sentence)
    return list(by_text.values())


def _text(sentence: Sentence) -> str:
    return " ".join(sentence[0]).lower()


def _tagged(sentences: Sequence[Sentence], names: Sequence[str], source: str) -> Examples:
    places = {name: place for place, name in enumerate(names)}
    labels = np.full((len(sentences), max(len(words) for words, _ in sentences)), IGNORED, np.int64)
    for row, (_, tags) in enumerate(sentences):
        labels[row, : len(tags)] = [places[tag] for tag in tags]
    return Examples([words for words, _ in sentences], labels, source)


def _task_data(task: TaskName, splits: Mapping[str, Examples], labels: Sequence[str]) -> TaskData:
    data = Data(splits["train"], splits["validation"], None, splits["test"], splits["ood_test"])
    return TaskData(task, data, splits["calibration"], tuple(labels))


_INTENTS = {
    "auto and commute": "current_location directions distance gas gas_type jump_start last_maintenance mpg "
    "oil_change_how oil_change_when schedule_maintenance tire_change tire_pressure traffic uber",
    "banking": "account_blocked balance bill_balance bill_due freeze_account interest_rate min_payment order_checks "
    "pay_bill pin_change report_fraud routing spending_history transactions transfer",
    "credit cards": "application_status apr card_declined credit_limit credit_limit_change credit_score damaged_card "
    "expiration_date improve_credit_score international_fees new_card redeem_rewards replacement_card_duration "
    "report_lost_card rewards_balance",
    "home": "calendar calendar_update next_song order order_status play_music reminder reminder_update shopping_list "
    "shopping_list_update smart_home todo_list todo_list_update update_playlist what_song",
    "kitchen and dining": "accept_reservations calories cancel_reservation confirm_reservation cook_time food_last "
    "how_busy ingredient_substitution ingredients_list meal_suggestion nutrition_info recipe restaurant_reservation "
    "restaurant_reviews restaurant_suggestion",
    "meta": "cancel change_accent change_ai_name change_language change_speed change_user_name change_volume maybe no "
    "repeat reset_settings sync_device user_name whisper_mode yes",
    "small talk": "are_you_a_bot do_you_have_pets fun_fact goodbye greeting how_old_are_you meaning_of_life tell_joke "
    "thank_you what_are_your_hobbies what_can_i_ask_you what_is_your_name where_are_you_from who_do_you_work_for "
    "who_made_you",
    "travel": "book_flight book_hotel car_rental carry_on exchange_rate flight_status international_visa lost_luggage "
    "plug_type timezone translate travel_alert travel_notification travel_suggestion vaccines",
    "utility": "alarm calculator date definition find_phone flip_coin make_call measurement_conversion roll_dice "
    "share_location spelling text time timer weather",
    "work": "direct_deposit income insurance insurance_change meeting_schedule next_holiday payday pto_balance "
    "pto_request pto_request_status pto_used rollover_401k schedule_meeting taxes w2",
}

DOMAINS = tuple(_INTENTS)

DOMAIN_OF = {intent: domain for domain, intents in _INTENTS.items() for intent in intents.split()}  # Intent → domain
