#include "tools/lab/study/field.h"

#include <algorithm>
#include <cmath>

namespace weft::lab {
namespace {

constexpr const char* kNames[kFields] = {"independent", "clustered", "periodic",   "drifting",
                                         "ties",        "needle",    "adversarial"};

void AddClusters(Random* random, std::vector<float>* field) {
  const auto N = static_cast<int64_t>(field->size());
  for (int cluster = 0; cluster < 6; ++cluster) {
    const int64_t centre = random->Below(N), half = 50 + random->Below(351);
    const int64_t end = std::min(N, centre + half);
    for (int64_t i = std::max<int64_t>(0, centre - half); i < end; ++i) {
      (*field)[static_cast<size_t>(i)] += 3;
    }
  }
}

void AddDrift(int64_t query, int64_t queries, std::vector<float>* field) {
  const auto N = static_cast<double>(field->size());
  const double centre = N * (static_cast<double>(query) + 0.5) / static_cast<double>(queries);
  for (size_t i = 0; i < field->size(); ++i) {
    const double x = (static_cast<double>(i) - centre) / (N / 24);
    (*field)[i] += static_cast<float>(4 * std::exp(-x * x / 2));
  }
}

}  // namespace

const char* Name(FieldKind kind) { return kNames[static_cast<int>(kind)]; }

bool ParseField(const std::string& name, FieldKind* kind) {
  for (int i = 0; i < kFields; ++i) {
    if (name == kNames[i]) {
      *kind = static_cast<FieldKind>(i);
      return true;
    }
  }
  return false;
}

double Random::Uniform() { return (static_cast<double>(Next() >> 11) + 0.5) * 0x1p-53; }

double Random::Normal() {
  has_spare_ = !has_spare_;
  if (!has_spare_) return spare_;
  const double radius = std::sqrt(-2 * std::log(Uniform())), angle = 6.283185307179586 * Uniform();
  spare_ = radius * std::sin(angle);
  return radius * std::cos(angle);
}

std::vector<float> MakeField(FieldKind kind, int64_t length, const Placement& target, uint64_t seed,
                             int64_t query, int64_t queries) {
  // A stream of its own for each field and query, whatever else is played.
  Random random(SplitMix64(SplitMix64(seed) ^ (static_cast<uint64_t>(query) << 8)) +
                (static_cast<uint64_t>(kind) << 56));
  std::vector<float> field(static_cast<size_t>(length));
  for (float& score : field) score = static_cast<float>(random.Normal());
  const auto at = [&](int64_t i) -> float& { return field[static_cast<size_t>(i)]; };
  switch (kind) {
    case FieldKind::kIndependent:
      break;
    case FieldKind::kClustered:
      AddClusters(&random, &field);
      break;
    case FieldKind::kPeriodic:
      for (int64_t i = 3; i < length; i += 16) at(i) += 4;
      break;
    case FieldKind::kDrifting:
      AddDrift(query, queries, &field);
      break;
    case FieldKind::kTies:
      for (float& score : field) score = score < 2 ? 0 : std::floor(score * 2) / 2;
      break;
    case FieldKind::kNeedle:
      for (int needle = 0; needle < 8; ++needle) at(random.Below(length)) += 20;
      break;
    case FieldKind::kAdversarial:
      for (int64_t i = 0; i < length; ++i) at(i) += target.Rank(i) == 0 ? 4 : 0;
      break;
  }
  return field;
}

}  // namespace weft::lab
