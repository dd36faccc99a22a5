#include "tools/lab/study/study.h"

#include <algorithm>
#include <charconv>

#include "kernels/select/exchange_bytes.h"
#include "kernels/select/load_law.h"

namespace weft::lab {
namespace {

constexpr const char* kModeNames[kModes] = {"exact", "interleaved", "certified", "block-sparse",
                                            "full"};

SelectionMode EngineMode(Mode mode) {
  switch (mode) {
    case Mode::kExact:
      return SelectionMode::kExact;
    case Mode::kInterleaved:
      return SelectionMode::kInterleaved;
    case Mode::kCertified:
      return SelectionMode::kCertified;
    default:
      return SelectionMode::kDense;
  }
}

bool HasLists(Mode mode) { return mode == Mode::kInterleaved || mode == Mode::kCertified; }
bool HasPlacement(Mode mode) { return mode != Mode::kBlockSparse && mode != Mode::kFull; }

Outcome Play(Mode mode, const Shards& shards, const std::vector<float>& scores, int64_t m,
             int64_t block) {
  switch (mode) {
    case Mode::kExact:
      return PlayExact(shards);
    case Mode::kInterleaved:
      return PlayInterleaved(shards, m);
    case Mode::kCertified:
      return PlayCertified(shards, m);
    case Mode::kBlockSparse:
      return PlayBlockSparse(shards, scores, block);
    case Mode::kFull:
      return PlayFull(shards);
  }
  return {};
}

// Sums over queries; Mean() turns them into a row.
class Tally {
 public:
  explicit Tally(Row row) : row_(std::move(row)) {
    row_.loads.assign(static_cast<size_t>(row_.G), 0);
  }

  const Row& row() const { return row_; }

  void Add(const Shards& shards, const Outcome& outcome, const ExchangeShape& shape) {
    if (!outcome.cut) {
      ++row_.trivial;
      return;
    }
    const auto K = static_cast<double>(shards.K);
    ++row_.pairs;
    row_.coverage += outcome.covered ? 1 : 0;
    row_.recall += static_cast<double>(outcome.kept) / K;
    row_.best_recall +=
        static_cast<double>(outcome.kept_best) / static_cast<double>(BestCount(shards.K));
    row_.imbalance += static_cast<double>(shards.GreatestLoad() * row_.G) / K;
    row_.attended += static_cast<double>(outcome.attended);
    row_.ranked += static_cast<double>(outcome.ranked);
    row_.second_rounds += outcome.second_round ? 1 : 0;
    row_.further += static_cast<double>(outcome.further);
    row_.rows_bytes += BytesOf(Exchange::kRows, outcome, shape);
    row_.partial_bytes += BytesOf(Exchange::kPartial, outcome, shape);
    std::vector<int64_t> loads = shards.load;
    std::sort(loads.begin(), loads.end(), std::greater<>());
    for (size_t g = 0; g < loads.size(); ++g) row_.loads[g] += static_cast<double>(loads[g]);
  }

  Row Mean() const {
    Row row = row_;
    if (row.pairs == 0) return row;
    const auto n = static_cast<double>(row.pairs);
    for (double* sum : {&row.coverage, &row.recall, &row.best_recall, &row.imbalance, &row.attended,
                        &row.ranked, &row.rows_bytes, &row.partial_bytes}) {
      *sum /= n;
    }
    for (double& load : row.loads) load /= n;
    if (row.second_rounds > 0) row.further /= static_cast<double>(row.second_rounds);
    return row;
  }

 private:
  // The block means of block-sparse are not counted.
  double BytesOf(Exchange exchange, const Outcome& outcome, const ExchangeShape& shape) const {
    double bytes = SelectionBytes(shape, exchange, EngineMode(row_.mode), row_.m);
    if (outcome.second_round) {
      bytes += SecondRoundBytes(shape, exchange, row_.m, static_cast<double>(outcome.further));
    }
    const int64_t first = outcome.attended - outcome.further;
    return bytes + AttentionBytes(shape, exchange, static_cast<double>(first));
  }

  Row row_;
};

// Where scores come from: a synthetic field, or captured pairs.
struct Source {
  std::string name;
  FieldKind kind = FieldKind::kIndependent;
  std::vector<const CapturedPair*> pairs;
};

std::vector<Source> Sources(const Spec& spec) {
  std::vector<Source> sources;
  if (!spec.captured) {
    for (FieldKind kind : spec.fields) sources.push_back({Name(kind), kind, {}});
    return sources;
  }
  const std::vector<int32_t> layers =
      spec.by_layer ? spec.captured->Layers() : std::vector<int32_t>{-1};
  for (int32_t layer : layers) {
    Source source{layer < 0 ? "captured" : "layer " + std::to_string(layer), {}, {}};
    for (const CapturedPair& pair : spec.captured->pairs()) {
      if (layer < 0 || pair.layer == layer) source.pairs.push_back(&pair);
    }
    sources.push_back(std::move(source));
  }
  return sources;
}

// The tallies of one field and G, in the order of the table: by mode, m, placement.
std::vector<Tally> Tallies(const Spec& spec, const std::string& field, int64_t G) {
  std::vector<Tally> tallies;
  const LoadLaw law{spec.K, G, spec.captured || spec.any_position ? 0 : spec.N};
  for (Mode mode : spec.modes) {
    Row row;
    row.field = field;
    row.G = G;
    row.mode = mode;
    const std::vector<int64_t> all =
        HasLists(mode) ? ListLengths(spec, G) : std::vector<int64_t>{0};
    for (int64_t m : all) {
      row.m = mode == Mode::kExact ? spec.K : m;
      if (mode == Mode::kInterleaved) {
        row.planned_coverage = CoverProbability(law, m);
        row.planned_recall = ExpectedRecall(law, m);
      }
      for (const std::string& placement : spec.placements) {
        row.placement = HasPlacement(mode) ? placement : "-";
        tallies.emplace_back(row);
        if (!HasPlacement(mode)) break;
      }
    }
  }
  return tallies;
}

struct Query {
  std::vector<float> scores;  // of all visible tokens
  int64_t context = 0;        // what contiguous placement takes for the whole
};

Query MakeQuery(const Spec& spec, const Source& source, int64_t G, int64_t number) {
  if (spec.captured) {
    const CapturedPair& pair = *source.pairs[static_cast<size_t>(number)];
    return {pair.Scores(), pair.context};
  }
  const Placement target{static_cast<int32_t>(G), 1, true};  // the default placement
  Query query{MakeField(source.kind, spec.N, target, spec.seed, number, spec.queries), spec.N};
  if (spec.any_position) {
    Random random(SplitMix64(spec.seed + 0x517) ^ static_cast<uint64_t>(number));
    query.scores.resize(static_cast<size_t>(1 + random.Below(spec.N)));
  }
  return query;
}

void PlayQuery(const Spec& spec, const Query& query, int64_t G, std::vector<Tally>* tallies) {
  const std::vector<Item> order = Ordered(query.scores);
  const auto t = static_cast<int64_t>(query.scores.size()) - 1;
  bool first = true;
  for (const std::string& name : spec.placements) {
    Placement placement;
    ParsePlacement(name, static_cast<int32_t>(G), query.context, &placement);
    const Shards shards = Shard(order, placement, spec.K);
    ExchangeShape shape;
    shape.G = G;
    shape.K = spec.K;
    shape.capacity = placement.MaxVisibleCount(t);
    for (Tally& tally : *tallies) {
      const Row& row = tally.row();
      if (row.placement != name && !(first && row.placement == "-")) continue;
      // A row that sees no more than K tokens keeps them all, whatever m is.
      const bool everything = t + 1 <= spec.K;
      const Outcome outcome =
          everything ? Outcome{} : Play(row.mode, shards, query.scores, row.m, spec.block);
      tally.Add(shards, outcome, shape);
    }
    first = false;
  }
}

}  // namespace

const char* Name(Mode mode) { return kModeNames[static_cast<int>(mode)]; }

bool ParseMode(const std::string& name, Mode* mode) {
  for (int i = 0; i < kModes; ++i) {
    if (name == kModeNames[i]) {
      *mode = static_cast<Mode>(i);
      return true;
    }
  }
  return false;
}

bool ParsePlacement(const std::string& name, int32_t ranks, int64_t context, Placement* placement) {
  const size_t colon = name.find(':');
  const std::string kind = name.substr(0, colon);
  int32_t block = 1;
  if (colon != std::string::npos) {
    const char* end = name.data() + name.size();
    const auto result = std::from_chars(name.data() + colon + 1, end, block);
    if (result.ec != std::errc() || result.ptr != end || block < 1) return false;
  }
  if (kind == "contiguous" && colon == std::string::npos) {
    *placement = {ranks, static_cast<int32_t>((context + ranks - 1) / ranks), false};
  } else if (kind == "round-robin" && colon == std::string::npos) {
    *placement = {ranks, 1, false};
  } else if (kind == "block-cyclic" && colon != std::string::npos) {
    *placement = {ranks, block, false};
  } else if (kind == "rotated") {
    *placement = {ranks, block, true};
  } else {
    return false;
  }
  return true;
}

std::vector<int64_t> ListLengths(const Spec& spec, int64_t G) {
  if (!spec.m.empty()) return spec.m;
  return {SmallestM({spec.K, G}, spec.coverage)};
}

std::vector<std::string> FieldNames(const Spec& spec) {
  std::vector<std::string> names;
  for (const Source& source : Sources(spec)) names.push_back(source.name);
  return names;
}

std::vector<Row> Run(const Spec& spec, const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<Row> rows;
  const std::vector<Source> sources = Sources(spec);
  const auto all = static_cast<int64_t>(sources.size() * spec.ranks.size());
  int64_t done = 0;
  for (const Source& source : sources) {
    const int64_t queries =
        spec.captured ? static_cast<int64_t>(source.pairs.size()) : spec.queries;
    for (int64_t G : spec.ranks) {
      std::vector<Tally> tallies = Tallies(spec, source.name, G);
      for (int64_t number = 0; number < queries; ++number) {
        PlayQuery(spec, MakeQuery(spec, source, G, number), G, &tallies);
      }
      for (const Tally& tally : tallies) rows.push_back(tally.Mean());
      if (progress) progress(++done, all);
    }
  }
  return rows;
}

}  // namespace weft::lab
