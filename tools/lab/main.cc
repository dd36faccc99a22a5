// weft-lab: the selection study. Exit codes: 0; 1 when a file cannot be written; 2 for a bad
// command line.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "kernels/select/load_law.h"
#include "tools/lab/options.h"
#include "tools/lab/plot/figures.h"
#include "tools/lab/plot/tables.h"

namespace {

using namespace weft::lab;

void Write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream file(path);
  file << text << std::flush;
  if (!file) throw std::runtime_error("cannot write " + path.string());
}

// Before a study that may take minutes.
void CheckOutputs(const Options& options) {
  if (!options.svg.empty()) std::filesystem::create_directories(options.svg);
  if (options.csv.empty() || options.csv == "-") return;
  if (!std::ofstream(options.csv, std::ios::app)) {
    throw std::runtime_error("cannot write " + options.csv);
  }
}

void ShowProgress(const char* what, int64_t done, int64_t all) {
  if (!isatty(STDERR_FILENO)) return;
  std::fprintf(stderr, "\r%s: %lld of %lld fields%s", what, static_cast<long long>(done),
               static_cast<long long>(all), done == all ? "\r\033[K" : "");
}

// Sweeps m, for the figures of each G.
void Draw(const Spec& asked, const std::filesystem::path& folder) {
  for (int64_t G : asked.ranks) {
    Spec spec = asked;
    spec.ranks = {G};
    spec.modes = {Mode::kInterleaved, Mode::kCertified, Mode::kExact};
    spec.m = SweepLengths(spec, G);
    const std::vector<Row> rows =
        Run(spec, [](int64_t done, int64_t all) { ShowProgress("curves", done, all); });
    std::vector<Row> interleaved;
    std::copy_if(rows.begin(), rows.end(), std::back_inserter(interleaved),
                 [](const Row& row) { return row.mode == Mode::kInterleaved; });
    const int64_t m = weft::SmallestM({spec.K, G}, spec.coverage);
    const std::string number = std::to_string(G) + ".svg";
    Write(folder / ("curves-" + number), CurveFigure(spec, G, interleaved));
    Write(folder / ("load-" + number), LoadFigure(spec, G, m, interleaved));
    Write(folder / ("cost-" + number), CostFigure(spec, G, rows));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const int code = ParseOptions(argc, argv, &options);
  if (code >= 0) return code;
  try {
    CheckOutputs(options);
    const std::vector<Row> rows =
        Run(options.spec, [](int64_t done, int64_t all) { ShowProgress("study", done, all); });
    if (!options.csv.empty() && options.csv != "-") Write(options.csv, Csv(rows));
    std::fputs((options.csv == "-" ? Csv(rows) : TableText(rows)).c_str(), stdout);
    if (!options.svg.empty()) Draw(options.spec, options.svg);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "weft-lab: %s\n", e.what());
    return 1;
  }
  return 0;
}
