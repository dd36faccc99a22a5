"""The demo's run: starts weft-server with four ranks, asks one question, grades the answer, explains
the figures. Exit code 0: right answer; 1: another answer, or something failed; 2: bad command line."""

import argparse
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def pick_turn(parser, path):
    """Document, its tokens, question and right answer: of the first turn that the reference got right
    word for word."""
    try:
        example = json.loads(pathlib.Path(path).read_text().splitlines()[0])
        turn = next(t for t in example["turns"] if t["reference_exact"])
        return example["document"], example["document_tokens"], turn["question"], turn["expected"]
    except OSError as error:
        parser.error(f"--example: {path}: {error.strerror}")
    except StopIteration:
        parser.error(f"--example: {path}: no turn is marked reference_exact")
    except (ValueError, IndexError, KeyError, TypeError):
        parser.error(f"--example: {path} is no document as those of deploy/examples")


def wait_until_ready(server, log, seconds):
    deadline = time.time() + seconds
    while time.time() < deadline:
        if server.poll() is not None:
            sys.exit(f"weft-server ended with exit code {server.returncode}:\n{log.read_text()}")
        if "info ready: " in log.read_text():
            return
        time.sleep(0.1)
    sys.exit(f"weft-server was not ready within {seconds} s:\n{log.read_text()}")


def explain_part(name, figures):
    pairs, covered = figures["pairs"], figures.get("pairs_covered")
    print(f"  {name}: {pairs} times a query in a layer had to leave tokens out.")
    print(f"    Attention then read {figures['mean_union']:.0f} tokens on average.")
    if covered is not None:
        print(f"    The union held the whole exact top-K in {covered} of them: {covered / pairs:.2%}.")
    print(f"    The fullest rank held {figures['mean_imbalance']:.2f} times its even share of the best.")


def explain(reply, ranks):
    selection = reply["selection"]
    print(f"Read {reply['prompt_tokens']} tokens in {reply['prefill_seconds']:.2f} s "
          f"({reply['prefill_tokens_per_second']:.0f} a second), first word after "
          f"{reply['first_token_seconds']:.2f} s.")
    print(f"Wrote {reply['output_tokens']} tokens, {reply['decode_tokens_per_second']:.0f} a second.")
    print(f"Selection: {selection['mode']}; the model attends to its K={selection['index_topk']} best "
          f"tokens, each of {ranks} ranks picked its own m={selection['m']} best.")
    for name in ("prefill", "decode"):
        if name in selection:
            explain_part(name, selection[name])
    if "prefill" not in selection and "decode" not in selection:
        print("  The document is so short that nothing had to be left out.")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bin", required=True, help="folder of the programs")
    parser.add_argument("--model", required=True, help="folder of the model")
    parser.add_argument("--example", required=True, help="example document with questions")
    parser.add_argument("--ranks", type=int, default=4, help="G (default 4)")
    args = parser.parse_args()
    for program in ("weft-server", "weft-chat"):
        if not os.access(pathlib.Path(args.bin, program), os.X_OK):
            parser.error(f"--bin: there is no program {program} in {args.bin}")
    document_text, document_tokens, question, expected = pick_turn(parser, args.example)
    port = free_port()

    with tempfile.TemporaryDirectory() as tmp:
        document, log = pathlib.Path(tmp, "document.txt"), pathlib.Path(tmp, "server.log")
        document.write_text(document_text)
        command = [f"{args.bin}/weft-server", "--model", args.model, "--ranks", str(args.ranks),
                   "--listen", f"127.0.0.1:{port}"]
        print("$", " ".join(command), flush=True)
        with log.open("w") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait_until_ready(server, log, 120)
            print(f"Document: {document_tokens} tokens, beginning {document_text[:60]!r}")
            print(f"Question: {question}", flush=True)
            chat = subprocess.run(
                [f"{args.bin}/weft-chat", "--server", f"127.0.0.1:{port}", "--file", str(document),
                 "-q", question, "--temperature", "0", "--json"],
                stdout=subprocess.PIPE, text=True, timeout=600)
            if chat.returncode != 0:
                sys.exit(f"weft-chat ended with exit code {chat.returncode}\n{log.read_text()}")
        except subprocess.TimeoutExpired:
            sys.exit(f"there was no answer within 600 s:\n{log.read_text()}")
        finally:
            server.send_signal(signal.SIGTERM)
            try:
                server.wait(timeout=20)
            except subprocess.TimeoutExpired:
                server.kill()
    reply = json.loads(chat.stdout)
    print(f"Answer:   {reply['answer']}\n")
    explain(reply, args.ranks)
    if expected not in reply["answer"]:
        sys.exit(f"\nWRONG: the answer should hold {expected!r}")
    print(f"\nRight: the answer holds {expected!r}.")


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
