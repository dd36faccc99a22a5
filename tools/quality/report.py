"""The table of a quality study, as Markdown."""

from intervals import bootstrap, wilson


def answers(cell):
    return [answer for document in cell["documents"] for answer in document]


def per_document(cell, key, count):
    return [(sum(a[key] for a in document), sum(count(a) for a in document))
            for document in cell["documents"]]


def mean(groups):
    return sum(s for s, _ in groups) / sum(n for _, n in groups)


def figure(groups, digits):
    low, high = bootstrap(groups)
    return f"{mean(groups):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def placed(cell, known):
    """Answers by document and place; where places are not known (results of older studies), by number."""
    return {(d, answer["at"] if known else i): answer
            for d, document in enumerate(cell["documents"]) for i, answer in enumerate(document)}


def changed(cell, reference):
    known = all("at" in answer for answer in answers(cell) + answers(reference))
    other = placed(reference, known)  # of at least the same answers
    pairs = [(answer, other[place]) for place, answer in placed(cell, known).items()]
    lost = sum(r["right"] and not a["right"] for a, r in pairs)
    won = sum(a["right"] and not r["right"] for a, r in pairs)
    return f"-{lost} +{won}"


def line(cell, reference):
    found = answers(cell)
    right, n = sum(a["right"] for a in found), len(found)
    if n == 0:
        return f"| {cell['mode']} | {cell['top_k']} | | | | | nothing was cut | | | |"
    low, high = wilson(right, n)
    figures = cell["selection"]
    covered = ("" if figures is None or "pairs_covered" not in figures else
               f"{100 * figures['pairs_covered'] / figures['pairs']:.2f} %")
    union = "" if figures is None else f"{figures['mean_union']:.0f}"
    divergence, other = "", ""
    if reference is not None and reference is not cell:
        divergence = figure(per_document(cell, "kl", lambda a: a["tokens"]), 6)
        other = changed(cell, reference)
    logprob = figure(per_document(cell, "logprob", lambda a: 1), 3)
    return (f"| {cell['mode']} | {cell['top_k'] or 'all'} | {cell['ranks'] or ''} | {cell['m'] or ''} | "
            f"{union} | {covered} | {100 * right / n:.1f} ({100 * low:.1f} to {100 * high:.1f}) | "
            f"{logprob} | {other} | {divergence} |")


def order(cell):
    rank = {"dense": 0, "exact": 1}.get(cell["mode"], 2)
    return (rank, -(cell["top_k"] or 0), cell["ranks"] or 0, -(cell["m"] or 0))


def table(cells):
    exact = {cell["top_k"]: cell for cell in cells if cell["mode"] == "exact"}
    asked = max(len(answers(cell)) for cell in cells)
    text = [f"{asked} questions on {len(cells[0]['documents'])} documents; in brackets 95 % "
            "intervals (right: Wilson; others: bootstrap over documents)", "",
            "| mode | K | G | m | union | covered | right, % | ln p of the right answer | lost, won "
            "against exact | KL from exact, nats a token |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    return "\n".join(text + [line(cell, exact.get(cell["top_k"]))
                             for cell in sorted(cells, key=order)])
