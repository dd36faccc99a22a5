#include "tools/lab/plot/tables.h"

#include "tools/cli/values.h"

namespace weft::lab {
namespace {

using cli::Format;

long long Int(int64_t value) { return value; }

std::string Line(const Row& row) {
  std::string text = Format("%-13s %-16s %5s %6lld", Name(row.mode), row.placement.c_str(),
                            row.m > 0 ? Format("%lld", Int(row.m)).c_str() : "-", Int(row.pairs));
  if (row.pairs == 0) return text + "   nothing was cut\n";
  text += Format(" %9.4f %9.5f %8.4f", row.coverage, row.recall, row.best_recall);
  text += row.placement == "-" ? Format(" %6s", "-") : Format(" %6.2f", row.imbalance);
  text += Format(" %9.1f %7.0f %9.1f %9.1f", row.attended, row.ranked, row.rows_bytes / 1000,
                 row.partial_bytes / 1000);
  if (row.mode == Mode::kCertified) {
    text += Format(" %7lld %8.1f", Int(row.second_rounds), row.further);
  }
  return text + "\n";
}

}  // namespace

std::string TableText(const std::vector<Row>& rows) {
  std::string text;
  const Row* last = nullptr;
  for (const Row& row : rows) {
    if (!last || last->field != row.field || last->G != row.G) {
      text += Format("%s%s, G = %lld\n", last ? "\n" : "", row.field.c_str(), Int(row.G));
      text += Format("%-13s %-16s %5s %6s %9s %9s %8s %6s %9s %7s %9s %9s %7s %8s\n", "mode",
                     "placement", "m", "pairs", "coverage", "recall", "best/16", "load", "attended",
                     "ranked", "rows kB", "part. kB", "rounds", "further");
    }
    text += Line(row);
    last = &row;
  }
  text +=
      "\ncoverage: pairs whose whole top-K is attended. best/16: recall of the foremost sixteenth. "
      "load: fullest rank over K/G.\nattended: tokens in attention. ranked: items ranked after the "
      "exchange. kB: one rank receives per query and layer, by exchange.\nrounds: second rounds; "
      "further: items in one. Only pairs where something was cut are counted.\n";
  return text;
}

std::string Csv(const std::vector<Row>& rows) {
  std::string text =
      "field,ranks,mode,placement,m,pairs,trivial,coverage,recall,best_recall,imbalance,attended,"
      "ranked,rows_bytes,partial_bytes,second_rounds,further,planned_coverage,planned_recall\n";
  for (const Row& row : rows) {
    text += Format("%s,%lld,%s,%s,%lld,%lld,%lld,", row.field.c_str(), Int(row.G), Name(row.mode),
                   row.placement.c_str(), Int(row.m), Int(row.pairs), Int(row.trivial));
    if (row.pairs == 0) {
      text += ",,,,,,,,,";
    } else {
      text += Format("%.6f,%.8f,%.6f,%.4f,%.2f,%.2f,%.1f,%.1f,%lld,%.2f", row.coverage, row.recall,
                     row.best_recall, row.imbalance, row.attended, row.ranked, row.rows_bytes,
                     row.partial_bytes, Int(row.second_rounds), row.further);
    }
    text += row.mode == Mode::kInterleaved
                ? Format(",%.8f,%.8f\n", row.planned_coverage, row.planned_recall)
                : ",,\n";
  }
  return text;
}

}  // namespace weft::lab
