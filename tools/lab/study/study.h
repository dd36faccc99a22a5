// The study: plays modes over fields, placements, ranks and list lengths, and averages over
// queries. Every figure is over non-trivial pairs only, those where some list left a token out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tools/lab/study/captured.h"
#include "tools/lab/study/field.h"
#include "tools/lab/study/play.h"

namespace weft::lab {

// "contiguous", "round-robin", "rotated", "block-cyclic:b", "rotated:b" (b tokens a block).
// False for anything else.
bool ParsePlacement(const std::string& name, int32_t ranks, int64_t context, Placement* placement);

enum class Mode : uint8_t { kExact, kInterleaved, kCertified, kBlockSparse, kFull };
constexpr int kModes = 5;
const char* Name(Mode mode);
bool ParseMode(const std::string& name, Mode* mode);

struct Spec {
  std::vector<FieldKind> fields;
  // Instead of fields, N, queries, any_position and seed: pairs that an engine captured.
  std::shared_ptr<const Captured> captured;
  bool by_layer = false;  // of the captured pairs: each layer by itself
  std::vector<std::string> placements;
  std::vector<int64_t> ranks;
  std::vector<Mode> modes;
  std::vector<int64_t> m;  // list lengths; empty: the planner's smallest for `coverage`
  double coverage = 0.99;
  int64_t K = 256;
  int64_t N = 4096;
  int64_t queries = 200;
  int64_t block = 64;         // block size of block-sparse
  bool any_position = false;  // queries at random positions of the context, not at its end
  uint64_t seed = 1;
};

struct Row {
  std::string field;      // its name, "captured", or "layer L"
  std::string placement;  // "-" for the modes that know none
  int64_t G = 1;
  Mode mode = Mode::kExact;
  int64_t m = 0;

  int64_t pairs = 0;                         // non-trivial; if 0 the means below mean nothing
  int64_t trivial = 0;                       // left out
  double coverage = 0;                       // share of pairs whose whole top-K is attended
  double recall = 0;                         // mean share of the top-K that is attended
  double best_recall = 0;                    // the same of the foremost sixteenth of the top-K
  double imbalance = 0;                      // mean of the greatest load over the even one, K/G
  double attended = 0;                       // mean tokens in attention: union size, and work
  double ranked = 0;                         // mean items ranked after the exchange, on every rank
  double rows_bytes = 0, partial_bytes = 0;  // mean, as kernels/select/exchange_bytes.h has it
  int64_t second_rounds = 0;
  double further = 0;         // mean items of a second round, over those that had one
  std::vector<double> loads;  // [G], mean load of the fullest rank, the second fullest, ...

  double planned_coverage = 1, planned_recall = 1;  // of the law of loads for this m
};

// Names of the rows' fields, in their order.
std::vector<std::string> FieldNames(const Spec& spec);

// progress(done, all), where given, after each field and G.
std::vector<Row> Run(const Spec& spec,
                     const std::function<void(int64_t, int64_t)>& progress = nullptr);

// The planner's smallest m, or spec.m.
std::vector<int64_t> ListLengths(const Spec& spec, int64_t G);

}  // namespace weft::lab
