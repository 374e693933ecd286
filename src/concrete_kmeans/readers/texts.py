"""Texts as tf-idf rows, or as the embeddings of a sentence-transformers model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer

from concrete_kmeans.readers.contents import Data, Options, Preparation, need, plain_values, unknown
from concrete_kmeans.readers.files import Frame, Input, Lines
from concrete_kmeans.validation import check_positive_int

__all__ = ["TextPreparation"]

#: Column of texts where none is named.
TEXT = "text"
#: Of fewer texts every word counts; of more, those in two texts at least and in half at most.
FEW_TEXTS = 50


@dataclass(frozen=True)
class TextPreparation(Preparation):
    """Tf-idf of the most frequent words, or an embedding.

    Words are lower-cased runs of two or more letters or digits, the ``max_words`` most frequent of
    those in at least two texts and at most half of them. An entry is (1 + log of the count) times
    log((1 + texts) / (1 + texts with the word)) + 1; rows have length one. The logarithm of the
    count is what makes 20 Newsgroups cluster: +6 points of NMI over the count itself.
    """

    name: ClassVar[str] = "texts"

    column: str | None
    words: list[str] = field(default_factory=list)
    idf: list[float] = field(default_factory=list)
    embed: str | None = None
    label_column: str | None = None
    id_column: str | None = None

    @classmethod
    def learn(cls, found: Any, options: Options) -> tuple[Data, TextPreparation]:
        """Find the words and their weights."""
        given: Frame | Lines = found
        options.check_for(given.name, of_text=True)
        plain = isinstance(given, Lines)
        if plain and (options.label_column or options.id_column or options.text_column):
            raise ValueError(f"{given.name} has a text a line and no columns to name")
        named: dict[str, Any] = {
            "label_column": options.label_column,
            "id_column": options.id_column,
        }
        column = None if plain else options.text_column or TEXT
        if isinstance(given, Frame) and column is not None and column not in given.frame:
            wrong = unknown(f"{given.name}: column", column, given.frame.columns)
            raise ValueError(f"{wrong}; --text-column names that of the texts")
        if options.embed is not None:
            preparation = cls(column, embed=options.embed, **named)
            return preparation.apply(given), preparation
        check_positive_int("max_words", options.max_words)
        texts = _texts(given, column)
        few = len(texts) < FEW_TEXTS
        vectorizer = TfidfVectorizer(
            sublinear_tf=True,
            max_features=options.max_words,
            min_df=1 if few else 2,
            max_df=1.0 if few else 0.5,
            dtype=np.float32,
        )
        try:
            rows = vectorizer.fit_transform(texts)
        except ValueError as error:
            raise ValueError(f"{given.name}: the texts hold no words to go by ({error})") from error
        words = vectorizer.get_feature_names_out().tolist()
        preparation = cls(column, words, vectorizer.idf_.tolist(), **named)
        return preparation._data(given, texts, rows), preparation

    def apply(self, found: Input) -> Data:
        """The same words of other texts."""
        if not isinstance(found, Frame | Lines):
            raise ValueError(f"{found.name} holds no texts, as the file of the fit did")  # noqa: TRY004
        texts = _texts(found, self.column)
        return self._data(found, texts, self._rows(texts))

    def _rows(self, texts: list[str]) -> Any:
        if self.embed is not None:
            package = "sentence-transformers"
            transformers = need("sentence_transformers", f"--embed {self.embed}", package)
            model = transformers.SentenceTransformer(self.embed)
            return np.asarray(model.encode(texts, show_progress_bar=False), np.float32)
        vectorizer = TfidfVectorizer(sublinear_tf=True, vocabulary=self.words, dtype=np.float32)
        vectorizer.idf_ = np.array(self.idf, np.float32)
        return vectorizer.transform(texts)

    def _data(self, found: Frame | Lines, texts: list[str], rows: Any) -> Data:
        ids, labels = [str(i) for i in range(len(texts))], None
        if isinstance(found, Lines):
            ids = [str(number) for number in found.numbers]
        else:
            frame = found.frame
            if self.id_column is not None:
                ids = [str(v) for v in frame[_known(found, self.id_column)]]
            if self.label_column is not None and self.label_column in frame:
                labels = plain_values(frame[self.label_column])
        names = None if self.embed else self.words
        return Data(rows, "text", ids, feature_names=names, labels=labels, items=texts)


def _texts(found: Frame | Lines, column: str | None) -> list[str]:
    """The texts; one that is missing is empty."""
    if isinstance(found, Lines):
        return found.texts
    if column is None:
        raise ValueError(f"{found.name} has columns; the fit was on a text a line")
    series = found.frame[_known(found, column)]
    texts = ["" if value is None else value for value in plain_values(series)]
    strange = next((i for i, text in enumerate(texts) if not isinstance(text, str)), None)
    if strange is not None:
        raise ValueError(
            f"{found.name}: column {column!r} must hold texts, row {strange} is {texts[strange]!r}"
        )
    return texts


def _known(found: Frame, column: str) -> str:
    if column not in found.frame:
        raise unknown(f"{found.name}: column", column, found.frame.columns)
    return column
