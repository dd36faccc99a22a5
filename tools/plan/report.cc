#include "tools/plan/report.h"

#include <charconv>

#include "tools/cli/values.h"

namespace weft::plan {
namespace {

using cli::Format;
using Object = nlohmann::ordered_json;

const char* const kModes[] = {"exact", "interleaved", "certified"};

long long Int(int64_t value) { return value; }

// Probabilities near 1 need more digits than a table has: 0.990549, but 1-8.57e-06.
std::string Probability(double p, double miss) {
  return miss > 0 && miss < 1e-4 ? Format("1-%.2e", miss) : Format("%.6f", p);
}

std::string Probability(const Lists& lists) {
  return Probability(lists.coverage, 1 - lists.coverage);
}

// As it was asked for: 0.9999999 is not 1.
std::string Asked(double gamma) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), gamma).ptr};
}

std::string Size(double bytes) {
  if (bytes < 10e3) return Format("%.0f B", bytes);
  return bytes < 10e6 ? Format("%.1f kB", bytes / 1e3) : Format("%.1f MB", bytes / 1e6);
}

Object JsonOf(const Lists& lists) {
  return {{"m", lists.m},
          {"coverage", lists.coverage},
          {"union", lists.united},
          {"missed_tokens", lists.missed},
          {"recall", lists.recall}};
}

Object JsonOf(const Certified& certified) {
  return {{"m", certified.lists.m},
          {"coverage", certified.lists.coverage},
          {"union", certified.lists.united},
          {"failing_pairs_per_step", certified.rounds.pairs},
          {"second_rounds_per_step", certified.rounds.layers},
          {"further_tokens", certified.further},
          {"cost_us_per_step", certified.cost_us}};
}

std::string ListsLine(const char* name, const Lists& lists) {
  return Format("  %-26s %6lld   covers %s\n", name, Int(lists.m), Probability(lists).c_str());
}

std::string CertifiedLine(const std::string& name, const Certified& c) {
  return Format("  %-26s %6lld   covers %-11s %9.4g fail, %8.3g second rounds, %10.1f us\n",
                name.c_str(), Int(c.lists.m), Probability(c.lists).c_str(), c.rounds.pairs,
                c.rounds.layers, c.cost_us);
}

std::string BytesPage(const Answer& answer) {
  std::string text = "\nBytes one rank receives, per decode query and layer\n";
  text += Format("  %-9s %-12s %11s %11s %14s %11s\n", "exchange", "mode", "selection", "attention",
                 "second rounds", "total");
  for (int e = 0; e < 2; ++e) {
    for (int mode = 0; mode < 3; ++mode) {
      const Bytes& b = answer.bytes[e][mode];
      text += Format("  %-9s %-12s %11s %11s %14s %11s\n", Name(static_cast<Exchange>(e)),
                     kModes[mode], Size(b.selection).c_str(), Size(b.attention).c_str(),
                     mode == 2 ? Size(b.second_round).c_str() : "-", Size(b.total()).c_str());
    }
  }
  return text;
}

}  // namespace

Object Json(const Answer& answer) {
  const Question& q = answer.question;
  Object json{{"top_k", q.K}, {"ranks", q.G}, {"coverage", q.gamma}};
  json["m_formula"] = answer.formula.m;
  json["coverage_formula"] = answer.formula.coverage;
  json["m_exact"] = answer.exact.m;
  json["coverage_exact"] = answer.exact.coverage;
  const Lists& used = answer.exact_in_context ? *answer.exact_in_context : answer.exact;
  json["union"] = used.united;
  json["attention_work"] =
      static_cast<double>(used.united) / static_cast<double>(LoadLaw{q.K, q.G, q.context}.Top());
  json["missed_tokens"] = used.missed;
  json["recall"] = used.recall;
  if (answer.context) {
    json["context"] = q.context;
    json["everything_selected"] = answer.trivial;
    json["m_context"] = answer.context->m;
    json["coverage_context"] = answer.context->coverage;
    json["coverage_exact_in_context"] = used.coverage;
    json["in_context"] = JsonOf(*answer.context);
  }
  for (int e = 0; e < 2; ++e) {
    for (int mode = 0; mode < 3; ++mode) {
      const Bytes& b = answer.bytes[e][mode];
      json["bytes"][Name(static_cast<Exchange>(e))][kModes[mode]] = {
          {"selection", b.selection},
          {"attention", b.attention},
          {"second_round", b.second_round},
          {"total", b.total()}};
    }
  }
  json["step"] = {{"rows", q.step.rows},
                  {"layers", q.step.layers},
                  {"token_ns", q.step.token_ns},
                  {"round_us", q.step.round_us},
                  {"row_us", q.step.row_us}};
  json["certified"] = JsonOf(answer.certified);
  json["certified"]["wanted_coverage"] = q.certified_gamma;
  json["certified_cheapest"] = JsonOf(answer.cheapest);
  return json;
}

std::string Page(const Answer& answer) {
  const Question& q = answer.question;
  std::string text =
      Format("K = %lld, G = %lld, coverage %s", Int(q.K), Int(q.G), Asked(q.gamma).c_str());
  text += q.context > 0 ? Format(", context %lld\n\n", Int(q.context)) : "\n\n";
  if (answer.trivial) text += "The context is no longer than K: every token is selected.\n\n";
  text += "List length m per rank\n";
  text += ListsLine("by the formula", answer.formula);
  text += ListsLine("smallest (used)", answer.exact);
  if (answer.context) {
    text += ListsLine("smallest for this context", *answer.context);
    text += ListsLine("the used m in this context", *answer.exact_in_context);
  }
  const Lists& used = answer.exact_in_context ? *answer.exact_in_context : answer.exact;
  const auto top = static_cast<double>(LoadLaw{q.K, q.G, q.context}.Top());
  text += Format("\n  %-26s %6lld   tokens, %.3f times the top-K\n", "union (used m)",
                 Int(used.united), static_cast<double>(used.united) / top);
  text += Format("  %-26s %6.3g   tokens expected, recall %s\n", "missing of the top-K",
                 used.missed, Probability(used.recall, 1 - used.recall).c_str());
  text += BytesPage(answer);
  text += Format("\nCertified mode: a step of %lld rows and %lld layers has %lld pairs\n",
                 Int(q.step.rows), Int(q.step.layers), Int(q.step.rows * q.step.layers));
  text += CertifiedLine(Format("m for coverage %s", Asked(q.certified_gamma).c_str()),
                        answer.certified);
  text += CertifiedLine("cheapest m", answer.cheapest);
  text += Format("  (us a step: union tokens at %g ns, second rounds at %g us and %g us a row)\n",
                 q.step.token_ns, q.step.round_us, q.step.row_us);
  return text;
}

std::string Table(const std::vector<Answer>& answers) {
  const Question& first = answers.front().question;
  const bool context = first.context > 0;
  std::string text = Format("K = %lld%s\n", Int(first.K),
                            context ? Format(", context %lld", Int(first.context)).c_str() : "");
  text += Format("%6s %9s | %9s %10s | %7s %10s |", "G", "coverage", "m formula", "covers",
                 "m exact", "covers");
  if (context) text += Format(" %9s %10s |", "m context", "covers");
  text += Format(" %7s %6s %9s %10s | %11s %11s | %9s %8s\n", "union", "work", "missed", "recall",
                 "exact rows", "interl.", "certif. m", "2nd/step");
  for (const Answer& a : answers) {
    text += Format("%6lld %9s | %9lld %10s | %7lld %10s |", Int(a.question.G),
                   Asked(a.question.gamma).c_str(), Int(a.formula.m),
                   Probability(a.formula).c_str(), Int(a.exact.m), Probability(a.exact).c_str());
    if (context) {
      text += Format(" %9lld %10s |", Int(a.context->m), Probability(*a.context).c_str());
    }
    const Lists& used = a.exact_in_context ? *a.exact_in_context : a.exact;
    const auto top = static_cast<double>(LoadLaw{a.question.K, 1, a.question.context}.Top());
    text += Format(" %7lld %6.3f %9.3g %10s | %11s %11s | %9lld %8.2g\n", Int(used.united),
                   static_cast<double>(used.united) / top, used.missed,
                   Probability(used.recall, 1 - used.recall).c_str(),
                   Size(a.bytes[0][0].total()).c_str(), Size(a.bytes[0][1].total()).c_str(),
                   Int(a.certified.lists.m), a.certified.rounds.layers);
  }
  text +=
      "work: union over top-K. Bytes: one rank receives per decode query and layer, exchange "
      "`rows`.\n2nd/step: expected second rounds of certified mode per step.\n";
  return text;
}

}  // namespace weft::plan
