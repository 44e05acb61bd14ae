"""Talks to a running backbone through OpenAI's own client; every answer must fit the client's own types.

usage: openai_client.py BASE_URL [KEY]
"""

import json
import sys

from openai import BadRequestError, OpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

client = OpenAI(base_url=sys.argv[1] + "/v1", api_key=sys.argv[2] if len(sys.argv) > 2 else "none", max_retries=0)
messages = [{"role": "user", "content": "Tell me of the king."}]
common = {"model": "kvasir-tiny", "messages": messages, "temperature": 0, "max_tokens": 24}
tool = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def checked(kind, raw):
    """The parsed answer, after its JSON was held to the type strictly (the client alone checks nothing)."""
    kind.model_validate(json.loads(raw.text if isinstance(raw.text, str) else raw.text()))
    return raw.parse()


# Models.
models = client.models.list().data
assert [type(model) for model in models] == [Model] and models[0].object == "model", models
assert client.models.retrieve(models[0].id).id == models[0].id

# A chat, whole: content, usage, probabilities, headers.
raw = client.chat.completions.with_raw_response.create(**common, logprobs=True, top_logprobs=2)
whole = checked(ChatCompletion, raw)
text = whole.choices[0].message.content
assert text and whole.choices[0].finish_reason == "length", whole
assert whole.usage.completion_tokens == 24 == len(whole.choices[0].logprobs.content)
assert raw.headers["x-kvasir-route"].startswith("any; remote="), raw.headers

# The same, streamed.
said, usage = "", None
stream = client.chat.completions.create(**common, stream=True, stream_options={"include_usage": True})
for chunk in stream:
    ChatCompletionChunk.model_validate(chunk.model_dump())
    said += "".join(choice.delta.content or "" for choice in chunk.choices)
    usage = chunk.usage or usage
assert said == text, (said, text)
assert usage == whole.usage, (usage, whole.usage)

# Tools, thinking and the route, as the client passes what it does not know.
extra = {"chat_template_kwargs": {"enable_thinking": False}, "route": "local"}
raw = client.chat.completions.with_raw_response.create(
    **common, tools=[tool], tool_choice="auto", parallel_tool_calls=False, user="ada", store=False, extra_body=extra
)
checked(ChatCompletion, raw)
assert raw.headers["x-kvasir-route"].startswith("local; remote=0"), raw.headers

# The stream helper, which puts chunks together by itself, up to a stop text.
stop = text.split()[4]
with client.chat.completions.stream(**common, stop=stop) as events:
    for _ in events:
        pass
    final = events.get_final_completion().choices[0]
assert (final.finish_reason, final.message.content) == ("stop", text[: text.find(stop)]), final

# A completion, whole and streamed.
prompt = {"model": "kvasir-tiny", "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
completion = checked(Completion, client.completions.with_raw_response.create(**prompt, logprobs=2))
parts = list(client.completions.create(**prompt, stream=True))
for part in parts:
    # The type knows no part that is not the last one, though OpenAI's own server sends such parts too.
    whole_part = part.model_dump()
    whole_part["choices"][0]["finish_reason"] = part.choices[0].finish_reason or "length"
    Completion.model_validate(whole_part)
assert "".join(part.choices[0].text for part in parts) == completion.choices[0].text

# Refusals name the field.
for field, value in [("temperature", 9), ("n", 2), ("messages", [])]:
    try:
        client.chat.completions.create(**{**common, field: value})
    except BadRequestError as refused:
        assert refused.param == field and refused.type == "invalid_request_error", refused
    else:
        raise AssertionError(f"{field} = {value} was served")

# Leaving a stream half-way must not disturb the next request.
stream = client.chat.completions.create(**{**common, "max_tokens": 2000}, stream=True)
next(iter(stream))
stream.close()
assert client.chat.completions.create(**common).choices[0].message.content == text
print("ok", text)
