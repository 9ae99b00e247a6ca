"""The bodies of requests and responses, for validation and for the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

MAX_TOP_K = 100


def check_text(text: str) -> str:
    """Return a text unchanged; raise an error if it is blank or not valid Unicode."""
    if not text.strip():
        raise ValueError("the text is empty; give a text with words")
    return check_unicode(text)


def check_unicode(text: str) -> str:
    r"""Return a text unchanged; raise an error if it has unpaired surrogates, as the JSON text "\ud800" has."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("the text is not valid Unicode; remove its unpaired surrogate") from None
    return text


Text = Annotated[str, AfterValidator(check_text), MinLen(1)]
Prompt = Annotated[str, AfterValidator(check_unicode)]
Texts = Annotated[list[Text], MinLen(1)]
Probability = Annotated[float, Ge(0), Le(1)]


class Body(BaseModel):
    """The body of a request; unknown fields are errors, and values are not converted to other types."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class TextsBody(Body):
    """The body of a request with a list of texts."""

    texts: Texts = Field(examples=[["a delightful film"]])


class PredictBody(TextsBody):
    """The body of a request to predict labels or numbers for texts, or for pairs of texts."""

    pairs: Texts | None = Field(None, description="The second text of each pair, if the model reads pairs.")


class AnswerBody(Body):
    """The body of a request to answer questions, each with a context that contains the answer."""

    questions: Texts
    contexts: Texts


class FillBody(Body):
    """The body of a request to predict the tokens at the masks of texts."""

    texts: Texts = Field(examples=[["Paris is the [MASK] of France."]])
    top_k: Annotated[int, Ge(1), Le(MAX_TOP_K)] = 5


class EmbedBody(TextsBody):
    """The body of a request to compute embeddings of texts."""

    pooling: str | None = Field(None, description="The pooling to use instead of the model's own.", examples=["mean"])


class Decoding(Body):
    """The decoding settings of a request: greedy decoding by default, sampling, or beam search.

    A temperature, top_k, or top_p selects sampling.
    """

    max_new_tokens: Annotated[int, Ge(1)] = 50
    temperature: Annotated[float, Gt(0), Le(100)] | None = None
    top_k: Annotated[int, Ge(1)] | None = None
    top_p: Annotated[float, Gt(0), Le(1)] | None = None
    num_beams: Annotated[int, Ge(1), Le(16)] = 1
    repetition_penalty: Annotated[float, Gt(0), Le(100)] = 1.0
    seed: Annotated[int, Ge(0), Le(1 << 62)] | None = Field(
        None, description="The seed of sampling; random by default."
    )
    stop: Annotated[list[Text], Field(max_length=8)] = []


class GenerateBody(Decoding):
    """The body of a request to continue a prompt, or to generate the output of an encoder-decoder for it."""

    prompt: Prompt = Field(examples=["Once upon a time"])
    stream: bool = Field(False, description="Whether to send the text in pieces, as server-sent events.")


class TranslateBody(TextsBody):
    """The body of a request to translate texts."""

    max_new_tokens: Annotated[int, Ge(1)] = 200
    num_beams: Annotated[int, Ge(1), Le(16)] = 5


class NeighborsBody(Body):
    """The body of a request to find words in `texts` that are used like the word `word` in its context `text`."""

    word: Text
    text: Text
    texts: Texts
    top_k: Annotated[int, Ge(1), Le(MAX_TOP_K)] = 5
    layer: int = Field(-1, description="The layer to compare: 0 for the embeddings, -1 for the top layer.")


class AttentionBody(Body):
    """The body of a request for the attention weights of a text in some layers."""

    text: Text
    layers: Annotated[list[int], MinLen(1), Field(max_length=100)] | None = Field(
        None, description="The layers to return, from 0; all by default."
    )


class EmbeddingsBody(BaseModel):
    """The body of a request for embeddings in the format of OpenAI; `user` is ignored."""

    model_config = ConfigDict(extra="forbid", strict=True)

    model: str
    input: Text | Texts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None
    user: str | None = None


class InferenceBody(BaseModel):
    """The body of a request in the format of Hugging Face; its `inputs` depend on the task."""

    model_config = ConfigDict(extra="allow", strict=True)

    inputs: Any = Field(examples=["a delightful film"])
    parameters: dict[str, Any] = {}
    stream: bool = False


# -- responses --------------------------------------------------------------------------------------------------------


class ErrorDetail(BaseModel):
    """The message of an error, and the field of the body that is wrong."""

    message: str
    field: str | None = None


class ErrorResponse(BaseModel):
    """The body of a response that reports an error."""

    error: ErrorDetail


class ModelFacts(BaseModel):
    """The description of a model: its properties, and the operations that it can do."""

    name: str
    family: str
    parameters: int
    capabilities: list[str]
    labels: list[str] | None
    task: str | None
    max_length: int | None
    example_languages: list[str]
    layers: int
    heads: int | None
    mask_token: str | None
    pair: bool
    has_report: bool
    has_curves: bool
    version: int


class ModelsResponse(BaseModel):
    """The descriptions of all models of the server."""

    models: list[ModelFacts]


class PredictResponse(BaseModel):
    """One prediction per text: a label with the probabilities of all labels, several labels, or a number."""

    predictions: list[dict[str, Any]]


class Span(BaseModel):
    """A labeled span of a text; `begin` is the offset of its first character, `end` the offset after its last one."""

    begin: int
    end: int
    label: str
    text: str
    probability: Probability


class TaggedText(BaseModel):
    """A text with its labeled spans."""

    text: str
    spans: list[Span]


class TagResponse(BaseModel):
    """One result per text: the text with its labeled spans."""

    predictions: list[TaggedText]


class AnswerSpan(BaseModel):
    """An answer and its character offsets in its context; the text is empty if the context has no answer."""

    answer: str
    begin: int | None
    end: int | None
    score: Probability


class AnswerResponse(BaseModel):
    """One answer per question."""

    answers: list[AnswerSpan]


class Candidate(BaseModel):
    """A token that a model predicts for a mask, with its probability."""

    token: str
    probability: Probability
    id: int


class FilledText(BaseModel):
    """A text with masks, the text with its most probable tokens, and the candidates for each mask."""

    text: str
    filled: str
    masks: list[list[Candidate]]


class FillResponse(BaseModel):
    """One result per text: its masks with their candidates."""

    results: list[FilledText]


class EmbedResponse(BaseModel):
    """One embedding per text."""

    embeddings: list[list[float]]
    dimension: int


class SimilarityResponse(BaseModel):
    """The cosine similarities of all texts with all texts, as a matrix."""

    similarities: list[list[float]]


class GenerateResponse(BaseModel):
    """A generated text without its prompt, its number of tokens, and whether the model ended it by itself."""

    text: str
    tokens: int
    ended: bool


class TranslateResponse(BaseModel):
    """One translation per text."""

    translations: list[str]


class Neighbor(BaseModel):
    """A found word in its text; the offsets are unknown if the tokenizer spells the word differently."""

    text: str
    word: str
    begin: int | None
    end: int | None
    similarity: float


class NeighborsResponse(BaseModel):
    """The words that are used most similarly, the most similar first."""

    neighbors: list[Neighbor]


class AttentionResponse(BaseModel):
    """The tokens of a text, and the attention weights by layer, head, query, and key."""

    tokens: list[str]
    attention: list[list[list[list[float]]]]


class CurvesResponse(BaseModel):
    """The learning curves of a run: its metrics by name, as lists of [step, value]."""

    steps: list[float]
    series: dict[str, list[list[float]]]


class StatusResponse(BaseModel):
    """The state of the server, "alive" or "ready"."""

    status: str
