#!/usr/bin/env python3
"""Writes the golden prompts of chat_golden_test.cc, from what the models are published with.

    make_chat_golden.py --v32 encoding_dsv32.py --template deepseek_v31=FILE.jinja ...
                        [--vector INPUT.json OUTPUT.txt]... golden.json.gz

--v32 is DeepSeek-V3.2's own encoding module, --template a model folder's chat template, rendered
with jinja2 as transformers sets it up, --vector a pair of V3.2's published test files (MIT, see
data/deepseek-v3-LICENSE). A golden is a
list of {"encoding", "thinking", "keep_reasoning", "effort", "tools", "response_format", "messages",
"prompt"}.
"""

import argparse
import copy
import gzip
import importlib.util
import json
import random

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

WEATHER = {"name": "get_weather", "description": "The weather of a day, at a place: °C & more",
           "parameters": {"type": "object", "properties": {
               "place": {"type": "string", "description": "A \"town\""}, "days": {"type": "integer", "default": 1},
               "unit": {"enum": ["c", "f"]}, "limit": {"type": "number", "default": 0.5}}, "required": ["place"]}}
CLOCK = {"name": "now", "parameters": {"type": "object", "properties": {}}}
BARE = {"name": "ping"}
FORMAT = {"type": "object", "properties": {"answer": {"type": "string"}, "score": {"type": "number", "maximum": 1e-05}}}


def call(name, **arguments):
    return {"id": f"call_{name}", "name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}


CALLS = [call("get_weather", place="Zürich, \"old\"\ntown", days=2, unit=None, limit=0.25),
         call("get_weather", place="", days=-1, extra={"a": [1, 2.0, {"b": "c"}], "ü": True}), call("now")]


def user(text):
    return {"role": "user", "content": text}


def assistant(text, reasoning="", calls=()):
    return {"role": "assistant", "content": text, "reasoning_content": reasoning, "tool_calls": list(calls)}


def tool(text, of="get_weather"):
    return {"role": "tool", "content": text, "tool_call_id": f"call_{of}"}


CONVERSATIONS = [
    [user("Hi")],
    [user("")],
    [{"role": "system", "content": "Be brief."}, user("Hi\n")],
    [{"role": "system", "content": "One."}, {"role": "system", "content": ""}, user(" a "), assistant(" b ", "why"),
     user("c")],
    [user("q1"), assistant("\n\na1  ", "\nr1\n"), user("q2"), assistant("a2", ""), user("q3")],
    [user("weather?"), assistant("", "look it up", CALLS[:1]), tool("{\"c\": 20}")],
    [{"role": "system", "content": "S"}, user("weather?"), assistant("One moment.", "two", CALLS), tool("sunny"),
     tool("rain <b>"), tool("12:00", "now")],
    [user("weather?"), assistant("", "a", CALLS[:2]), tool("1"), tool("2"), assistant("", "b", CALLS[2:]), tool("3", "now"),
     assistant("Fine.", "done"), user("Thanks"), assistant("", "again", CALLS[:1]), tool("4")],
    [user("q"), assistant("", "r", CALLS[:1]), tool("5"), assistant("", "", CALLS[2:]), tool("6", "now"), user("next")],
    [user("über 😀 <think>"), assistant("ok"), user("<tool_call> </think> x")],
    [user("hidden"), assistant("<think>inner</think>outer"), user("next")],
]
DEVELOPER = [
    [{"role": "developer", "content": "Rules."}],
    [{"role": "system", "content": "S"}, user("q"), assistant("a", "r"), {"role": "developer", "content": "D"}],
]


def random_conversation(rng):
    """Any order that the encodings allow."""
    texts = ["a", "", "line\nbreak", " space ", "naïve 中文", "{\"k\": 1}", "x" * 30]
    messages = [{"role": "system", "content": rng.choice(texts)} for _ in range(rng.randint(0, 2))]
    for _ in range(rng.randint(1, 3)):
        messages.append(user(rng.choice(texts)))
        for _ in range(rng.randint(0, 2)):
            calls = rng.sample(CALLS, rng.randint(1, 3))
            messages.append(assistant(rng.choice(texts), rng.choice(["", "r", "two\nlines"]), calls))
            messages += [tool(rng.choice(texts), c["name"]) for c in calls]
        messages.append(assistant(rng.choice(texts), rng.choice(["r", "two\nlines"])))
    messages.pop()
    return messages


def openai(messages, arguments=lambda text: text):
    """As public tools write them: calls in an envelope, nothing where there is nothing."""
    result = []
    for m in messages:
        m = {k: v for k, v in m.items() if k in ("role", "content") or v}
        if "tool_calls" in m:
            m["tool_calls"] = [{"id": c["id"], "type": "function",
                                "function": {"name": c["name"], "arguments": arguments(c["arguments"])}}
                               for c in m["tool_calls"]]
        result.append(m)
    return result


def envelope(tools):
    return [{"type": "function", "function": t} for t in tools]


def v32(module, case):
    messages = openai(case["messages"])
    task = {}
    if case["tools"]:
        task["tools"] = envelope(case["tools"])
    if case["response_format"]:
        task["response_format"] = case["response_format"]
    if task:
        if messages[0]["role"] not in ("system", "developer"):
            messages.insert(0, {"role": "system", "content": ""})
        messages[0].update(task)
    return module.encode_messages(messages, thinking_mode="thinking" if case["thinking"] else "chat")


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=["jinja2.ext.loopcontrols"])
    env.filters["tojson"] = lambda x, ensure_ascii=False: json.dumps(x, ensure_ascii=ensure_ascii)
    return env


def by_template(name, template, case):
    is_glm = name.startswith("glm")
    values = {"messages": openai(case["messages"], json.loads if is_glm else lambda text: text),
              "add_generation_prompt": True, "bos_token": "<｜begin▁of▁sentence｜>"}
    values["enable_thinking" if is_glm else "thinking"] = case["thinking"]
    if is_glm and case["tools"]:
        values["tools"] = envelope(case["tools"])
    if case["keep_reasoning"]:
        values["clear_thinking"] = False
    if case["effort"]:
        values["reasoning_effort"] = case["effort"]
    return template.render(**values)


def cases(name, rng):
    conversations = CONVERSATIONS + [random_conversation(rng) for _ in range(12)]
    if name == "deepseek_v32":
        conversations += DEVELOPER
    if name == "deepseek_v3":  # whose template leaves a single call open
        conversations = [c for c in conversations if not any(m.get("tool_calls") for m in c)]
        conversations = [c for c in conversations if not any("</think>" in m["content"] for m in c)]
    for messages in conversations:
        for thinking in (False, True):
            if thinking and name == "deepseek_v3":
                continue
            case = {"encoding": name, "thinking": thinking, "keep_reasoning": False, "effort": "", "tools": [],
                    "response_format": None, "messages": messages}
            yield case
            if name.startswith("glm") or name == "deepseek_v32":
                yield dict(case, tools=[WEATHER, CLOCK, BARE])
            if name == "deepseek_v32":
                yield dict(case, tools=[CLOCK], response_format=FORMAT)
                yield dict(case, response_format=FORMAT)
            if name.startswith("glm"):
                yield dict(case, keep_reasoning=True)
            if name == "glm52" and thinking:
                yield dict(case, effort="high")


def fnv(text):
    """As in template_match.cc."""
    result = 0xcbf29ce484222325
    for byte in text.encode():
        result = (result ^ byte) * 0x100000001b3 % 2**64
    return result


def from_vector(source, output):
    """A published input, as ours, with the published prompt and the reply that ends it."""
    with open(source, encoding="utf-8") as f:
        published = json.load(f)
    with open(output, encoding="utf-8") as f:
        prompt = f.read().strip()
    tools = published.get("tools", [])
    messages = copy.deepcopy(published["messages"])
    for message in messages:
        tools = tools or message.pop("tools", [])
        message["tool_calls"] = [{"id": c.get("id", ""), **c["function"]} for c in message.get("tool_calls", [])]
        message["content"] = message.get("content") or ""
    last = messages.pop()
    reply = last["reasoning_content"] + "</think>" + last["content"]
    if not prompt.endswith("<think>" + reply + "<｜end▁of▁sentence｜>"):
        raise ValueError(f"{output} does not end with the last message of {source}")
    prompt = prompt.removesuffix(reply + "<｜end▁of▁sentence｜>")
    golden = {"encoding": "deepseek_v32", "thinking": True, "keep_reasoning": False, "effort": "",
              "tools": [t["function"] for t in tools], "response_format": None, "messages": messages, "reply": last}
    # The largest one is not worth its bytes twice.
    golden.update({"prompt": prompt} if len(prompt) < 100000 else {"bytes": len(prompt.encode()), "fnv": fnv(prompt)})
    return golden


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--v32", required=True)
    parser.add_argument("--template", action="append", default=[])
    parser.add_argument("--vector", nargs=2, action="append", default=[])
    parser.add_argument("--seed", type=int, default=5)
    parser.add_argument("golden")
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("encoding", args.v32)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    goldens = [from_vector(source, output) for source, output in args.vector]
    rng = random.Random(args.seed)
    for case in cases("deepseek_v32", rng):
        goldens.append(dict(case, prompt=v32(module, case)))
    for item in args.template:
        name, path = item.split("=", 1)
        with open(path, encoding="utf-8") as f:
            template = environment().from_string(f.read())
        for case in cases(name, rng):
            goldens.append(dict(case, prompt=by_template(name, template, case)))
    with gzip.GzipFile(args.golden, "wb", mtime=0) as f:
        f.write(json.dumps(goldens, ensure_ascii=False).encode())
    print(len(goldens), "prompts")


if __name__ == "__main__":
    main()
