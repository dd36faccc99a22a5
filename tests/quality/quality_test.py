"""tools/quality: its statistics, and a small study of the demo model, cut short and resumed."""

import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import unittest
from array import array

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BIN = pathlib.Path(sys.argv.pop(1)).resolve()
sys.path.insert(0, str(ROOT / "tools/quality"))
sys.dont_write_bytecode = True

import captured  # noqa: E402
import counts  # noqa: E402
import documents  # noqa: E402
import intervals  # noqa: E402
import mistakes  # noqa: E402
import report  # noqa: E402


def write_capture(path, rows, complete="true"):
    header = {"__metadata__": {"format": "weft-capture-1", "complete": complete}}
    data = b""
    for name, row in rows.items():
        raw = array("f", row).tobytes()
        header[name] = {"dtype": "F32", "shape": [len(row)],
                        "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def run(*arguments):
    return subprocess.run([str(ROOT / "tools/quality/quality.py"), "--bin", str(BIN), *arguments],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Statistics(unittest.TestCase):
    def test_wilson_as_published(self):
        # Newcombe 1998, table I: 81 of 263 and 0 of 20.
        low, high = intervals.wilson(81, 263)
        self.assertAlmostEqual(low, 0.2553, places=4)
        self.assertAlmostEqual(high, 0.3662, places=4)
        low, high = intervals.wilson(0, 20)
        self.assertEqual(low, 0)
        self.assertAlmostEqual(high, 0.1611, places=4)

    def test_bootstrap_draws_documents(self):
        alike = intervals.bootstrap([(2.0, 4)] * 5)
        self.assertEqual(alike, (0.5, 0.5))
        low, high = intervals.bootstrap([(0.0, 10), (10.0, 10), (0.0, 10), (10.0, 10)])
        self.assertLess(low, 0.2)
        self.assertGreater(high, 0.8)
        self.assertEqual((low, high), intervals.bootstrap([(0.0, 10), (10.0, 10)] * 2))

    def test_divergence_of_two_distributions(self):
        p, q = [0.5, 0.25, 0.25], [0.25, 0.25, 0.5]
        want = [math.log(x) + 3 for x in p]
        got = [math.log(x) - 7 for x in q]
        self.assertAlmostEqual(captured.divergence(want, got), 0.25 * math.log(2))
        self.assertAlmostEqual(captured.divergence(want, want), 0)

    def test_divergences_by_answer(self):
        with tempfile.TemporaryDirectory() as folder:
            one, two = folder + "/one", folder + "/two"
            rows = {f"logits.1.{t}": [0.0, float(t)] for t in range(4, 8)}
            write_capture(one, rows)
            write_capture(two, rows | {"logits.1.6": [0.0, 0.0]})
            sums = captured.answer_divergences(one, two, [{"answers": [(5, 7), (7, 9)]}])
            self.assertEqual(len(sums[0]), 2)
            self.assertEqual(sums[0][0], 0)
            self.assertGreater(sums[0][1], 0.5)
            write_capture(two, rows, complete="false")
            with self.assertRaisesRegex(mistakes.Mistake, "not a complete capture"):
                captured.Logits(two)

    def test_what_is_no_capture_is_told(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "capture")
            for raw in (b"", b"1234", struct.pack("<Q", 1 << 62), struct.pack("<Q", 2) + b"{}",
                        struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 9) + b"{\"a\": 1"):
                path.write_bytes(raw)
                with self.assertRaisesRegex(mistakes.Mistake, "is no capture of weft-engine"):
                    captured.Logits(path)
            write_capture(path, {"logits.1.4": [0.0, math.nan]})
            with self.assertRaisesRegex(mistakes.Mistake, "tensor logits.1.4 holds what is no finite"):
                captured.Logits(path).row(1, 4)
            with self.assertRaisesRegex(mistakes.Mistake, "has no tensor logits.2.4"):
                captured.Logits(path).row(2, 4)


class Tokens(unittest.TestCase):
    def test_conversations_are_those_of_the_reference(self):
        conversations, _ = documents.load(ROOT / "deploy/examples/09-4013tok.jsonl",
                                          BIN / "weft-tokenize", ROOT / "deploy/models/demo")
        raw = (ROOT / "tests/fixtures/data/logprobs/example-09.safetensors").read_bytes()
        (length,) = struct.unpack("<Q", raw[:8])
        begin, end = json.loads(raw[8:8 + length])["token_ids"]["data_offsets"]
        want = array("i")
        want.frombytes(raw[8 + length + begin:8 + length + end])
        self.assertEqual(conversations[0]["ids"], list(want))
        self.assertEqual(conversations[0]["answers"][0], (4023, 4032))

    def test_weft_tokenize_refuses_what_is_no_text(self):
        tokenize = lambda text, *options: subprocess.run(
            [BIN / "weft-tokenize", *options], input=text, text=True, capture_output=True)
        model = ["--model", str(ROOT / "deploy/models/demo")]
        self.assertEqual(tokenize('""\n', *model).stdout, "[]\n")
        refused = tokenize('"a"\n{}\n', *model)
        self.assertEqual(refused.returncode, 1)
        self.assertIn("weft-tokenize: line 2: ", refused.stderr)
        refused = tokenize("", "--model", "/nowhere")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("/nowhere/tokenizer.json", refused.stderr)
        self.assertEqual(tokenize("").returncode, 2)
        self.assertIn("--model", tokenize("", "--help").stdout)


class Counts(unittest.TestCase):
    def test_questions_for_counts_are_answered_by_their_documents(self):
        made = list(counts.documents(7, 3))
        self.assertEqual(made, list(counts.documents(7, 3)))
        for document in made:
            (_, text), *turns = document["pieces"]
            listed = text.removeprefix(counts.BOS).split()
            self.assertGreaterEqual(len(listed), 1100)
            self.assertEqual(len(turns), 2 * 20)
            for (kind, question), (answer_kind, answer) in zip(turns[::2], turns[1::2]):
                self.assertEqual((kind, answer_kind), ("", "answer"))
                what, which = question.split()
                if what == "many":
                    ratio = listed.count(which) / int(answer)
                    self.assertTrue(0.7 < ratio < 1.42 or answer in ("5", "320"))
                else:
                    self.assertEqual(listed.count(answer.strip()),
                                     max(map(listed.count, counts.PLACES[which])))

    def test_their_texts_are_the_tokens_of_training(self):
        draw = random.Random(3)
        listed, questions = counts.make(draw)
        ids = counts.Ids(json.loads((ROOT / "deploy/models/demo/tokenizer.json").read_text()))
        row, places, answers = ids.row(listed, questions)
        self.assertEqual([row[place + 1] for place in places], answers)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "documents.jsonl")
            path.write_text(json.dumps({"pieces": counts.pieces(listed, questions)}) + "\n")
            loaded, _ = documents.load(path, BIN / "weft-tokenize", ROOT / "deploy/models/demo")
        self.assertEqual(loaded[0]["ids"], row)
        self.assertEqual([begin for begin, _ in loaded[0]["answers"]], [p + 1 for p in places])


class Study(unittest.TestCase):
    def test_a_study_is_resumed_and_reported(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            common = ["--documents", example, "--out", folder, "--ranks", "2", "--top-k", "32",
                      "--exact-top-k", ""]
            first = run(*common, "--modes", "interleaved", "--coverage", "0.5")
            self.assertEqual(first.returncode, 0, first.stderr)
            self.assertIn("cell 3 of 3: interleaved K=32 G=2 coverage=0.5", first.stderr)
            results = pathlib.Path(folder, "results.jsonl")
            lines = results.read_text().splitlines()
            self.assertEqual(len(lines), 3)
            # What is there is left as it was.
            again = run(*common, "--modes", "certified", "--coverage", "0.5")
            self.assertEqual(again.returncode, 0, again.stderr)
            self.assertIn("cell 1 of 1: certified", again.stderr)
            cells = [json.loads(line) for line in results.read_text().splitlines()]
            self.assertEqual([json.dumps(cell) for cell in cells[:3]], lines)
            self.assertEqual([cell["mode"] for cell in cells],
                             ["dense", "exact", "interleaved", "certified"])
            exact, interleaved, certified = (cell["documents"][0] for cell in cells[1:])
            self.assertEqual(len(exact), 6)  # every query saw more than 32 tokens
            total = lambda answers: sum(a["kl"] for a in answers) / sum(a["tokens"] for a in answers)
            self.assertGreater(total(interleaved), 1e-6)
            self.assertLess(cells[2]["selection"]["pairs_covered"], cells[2]["selection"]["pairs"])
            selection = cells[3]["selection"]
            self.assertEqual(selection["pairs_covered"] + selection["second_rounds"],
                             selection["pairs"])
            self.assertEqual(len(certified), 6)
            table = run("--out", folder, "--report").stdout
            self.assertIn("6 questions on 1 documents", table)
            self.assertEqual(table.count("\n| "), 6)

    def test_answers_to_which_nothing_was_cut_do_not_count(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")
        with tempfile.TemporaryDirectory() as folder:
            done = run("--documents", example, "--out", folder, "--ranks", "", "--top-k", "1024",
                       "--exact-top-k", "")
            self.assertEqual(done.returncode, 0, done.stderr)
            cells = [json.loads(line) for line in
                     pathlib.Path(folder, "results.jsonl").read_text().splitlines()]
            self.assertEqual([len(cell["documents"][0]) for cell in cells], [6, 0])
            self.assertIn("nothing was cut", done.stdout)

    def test_answers_of_which_the_lists_hold_everything_do_not_count(self):
        example = str(ROOT / "deploy/examples/00-392tok.jsonl")  # answers begin at 401 to 515
        with tempfile.TemporaryDirectory() as folder:
            done = run("--documents", example, "--out", folder, "--ranks", "4", "--top-k", "380",
                       "--exact-top-k", "", "--coverage", "0.99")
            self.assertEqual(done.returncode, 0, done.stderr)
            cells = [json.loads(line) for line in
                     pathlib.Path(folder, "results.jsonl").read_text().splitlines()]
            m = cells[2]["m"]
            exact, interleaved = ([answer["at"] for answer in cell["documents"][0]]
                                  for cell in cells[1:])
            self.assertEqual(len(exact), 6)
            self.assertEqual(interleaved, [at for at in exact if math.ceil(at / 4) > m])
            self.assertTrue(0 < len(interleaved) < 6)
            # Queries before the answers count likewise.
            self.assertLess(cells[2]["selection"]["pairs"], cells[1]["selection"]["pairs"])

    def test_lost_and_won_are_of_the_same_answers(self):
        answer = lambda at, right: {"at": at, "right": right}
        exact = {"documents": [[answer(5, True), answer(9, False), answer(12, True)]]}
        cell = {"documents": [[answer(9, True), answer(12, False)]]}
        self.assertEqual(report.changed(cell, exact), "-1 +1")
        for document in exact["documents"] + cell["documents"]:
            for entry in document:
                del entry["at"]
        self.assertEqual(report.changed(cell, exact), "-0 +0")  # the first two
        exact["documents"][0][0]["right"] = False
        self.assertEqual(report.changed(cell, exact), "-0 +1")

    def test_bad_values_are_refused(self):
        self.assertEqual(run().returncode, 2)
        refused = run("--out", "/tmp/x", "--modes", "fast")
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--modes must be of interleaved, certified, got 'fast'", refused.stderr)
        for option, value, rule in (
                ("--ranks", "x", "must be a whole number from 1 to 4096, got 'x'"),
                ("--ranks", "2,0", "got '0'"), ("--top-k", "-5", "from 1 to 65536, got '-5'"),
                ("--top-k", "2,,3", "got ''"), ("--exact-top-k", "1.5", "got '1.5'"),
                ("--coverage", "", "must be a number above 0 to 1, got ''"),
                ("--coverage", "0", "got '0'"), ("--coverage", "nan", "got 'nan'"),
                ("--coverage", "1.1", "got '1.1'"), ("--first", "-1", "got '-1'")):
            self.refuses(["--out", "/tmp/x", option + "=" + value], option + " must be", rule)
        self.refuses([], "give --out or --script")
        self.refuses(["--out", "/tmp/x", "--script", "/tmp/y"], "give --out or --script")
        self.refuses(["--script", "/tmp/y", "--report"], "--report needs --out")
        self.refuses(["--nonsense"], "--nonsense")
        text = run("--help").stdout
        for option in ("--out", "--bin", "--model", "--documents", "--first", "--top-k",
                       "--exact-top-k", "--modes", "--ranks", "--coverage", "--report", "--script"):
            self.assertRegex(text, rf"\n  {option}( [A-Z_]+)?\s+\S")  # with what it does
        self.assertIn("Exit codes: 0; 1 when", text)

    def refuses(self, arguments, *parts):
        """In one line, and with 2."""
        done = run(*arguments)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        self.assertTrue(done.stderr.startswith("quality.py: "), done.stderr)
        for part in parts:
            self.assertIn(part, done.stderr)

    def test_files_that_are_missing_or_broken_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            path, out = folder + "/documents", folder + "/out"
            self.refuses(["--out", out, "--documents", path], path + ": No such file or directory")
            self.refuses(["--out", out, "--documents", folder], folder + ": Is a directory")
            good = {"document": "d", "turns": [{"question": "q", "answer": "a"}]}
            for line, rule in (
                    ("{", "must be JSON"), ("\xff", "must be JSON"), ("[1]", "must be a JSON object"),
                    ("{}", "must have a list of turns"), ('{"turns": []}', "must have texts"),
                    ('{"turns": [1], "document": ""}', "must have a list of turns"),
                    (json.dumps(good | {"turns": [{"question": "q"}]}), "must have texts"),
                    (json.dumps(good | {"document": "\ud800"}), "holds half of a surrogate"),
                    (json.dumps(good | {"turns": []}), "must have an answer"),
                    ('{"pieces": 1}', "must have pieces"), ('{"pieces": [["x", ""]]}', "must have pieces"),
                    ('{"pieces": [["answer", 1]]}', "must have texts"),
                    ('{"pieces": [["answer", "a"]]}', "must have an answer with something before it"),
                    ("[" * 100000, "must be JSON")):
                pathlib.Path(path).write_text(json.dumps(good) + "\n\n" + line + "\n",
                                              encoding="latin1")
                self.refuses(["--out", out, "--documents", path], f"{path}: line 3 {rule}")
            pathlib.Path(path).write_text("\n")
            self.refuses(["--out", out, "--documents", path], path + " holds no document")
            pathlib.Path(path).write_text(json.dumps(good) + "\n")
            self.refuses(["--out", out, "--documents", path, "--model", folder],
                         "weft-tokenize: ", folder + "/tokenizer.json")
            self.refuses(["--out", out, "--bin", folder], "--bin must be a folder with the program")
            self.refuses(["--out", path, "--documents", path], path + ": File exists")
            self.refuses(["--script", "/nowhere/script", "--documents", path], "/nowhere/script")

    def test_broken_results_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            results = pathlib.Path(folder, "results.jsonl")
            self.refuses(["--out", folder, "--report"], "there are no results in " + str(results))
            good = {"key": "k", "name": "dense", "mode": "dense", "top_k": 0, "ranks": 0, "m": 0,
                    "selection": None,
                    "documents": [[{"at": 5, "right": True, "tokens": 2, "logprob": -1.0}]]}
            results.write_text(json.dumps(good) + "\n")
            self.assertIn("1 questions on 1 documents", run("--out", folder, "--report").stdout)
            for line in (json.dumps(good)[:40], "7", json.dumps(good | {"documents": 1}),
                         json.dumps(good | {"documents": [[{"at": 5}]]}),
                         json.dumps({k: v for k, v in good.items() if k != "m"})):
                results.write_text(json.dumps(good) + "\n" + line)
                self.refuses(["--out", folder, "--report"], f"{results}: line 2 is no result")
                self.refuses(["--out", folder, "--first", "1"], f"{results}: line 2 is no result")

    def test_training_says_what_it_lacks(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "torch.py").write_text("raise ImportError(name='torch')\n")
            done = subprocess.run(
                [sys.executable, ROOT / "tools/quality/train_counts.py", "--out", folder],
                env={"PYTHONPATH": folder}, text=True, capture_output=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr,
                         "train_counts.py: torch is missing: pip install torch safetensors\n")


class Demo(unittest.TestCase):
    def test_bad_values_are_refused(self):
        def refuses(part, **values):
            values = {"bin": BIN, "model": ROOT / "deploy/models/demo",
                      "example": ROOT / "deploy/examples/09-4013tok.jsonl"} | values
            done = subprocess.run(
                [sys.executable, ROOT / "tools/demo.py"] +
                [word for key, value in values.items() for word in ("--" + key, str(value))],
                text=True, capture_output=True)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertIn(part, done.stderr)

        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "example")
            refuses("there is no program weft-server in " + folder, bin=folder)
            refuses(f"--example: {path}: No such file", example=path)
            for text in ("", "{", "{}", '{"turns": 1}', '{"turns": [{"reference_exact": true}]}'):
                path.write_text(text)
                refuses(f"--example: {path} is no document as those", example=path)
            path.write_text('{"turns": []}')
            refuses("no turn is marked reference_exact", example=path)
            refuses("--ranks", ranks="x")


if __name__ == "__main__":
    unittest.main()
