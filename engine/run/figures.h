// What the approximation did, over query-layer pairs where something was cut: a query with more
// than K visible tokens, in a layer with an indexer, whose first lists left one of them out (exact
// mode always does). Other pairs are covered trivially and never counted.
#pragma once

#include <cstdint>

namespace weft {

struct SelectionFigures {
  int64_t pairs = 0;
  int64_t pairs_covered = 0;    // the first union holds the whole exact top-K (certificate)
  int64_t queries = 0;          // queries with at least one such pair
  int64_t queries_covered = 0;  // covered in all of them
  double union_sum = 0;         // tokens attention read, summed over pairs
  // What the first unions would be with the plan's m in every layer; where rows have an m for each.
  double planned_union_sum = 0;
  double imbalance_sum = 0;  // fullest rank's share of the foremost items over an even share
  // Certified mode: pairs whose first union did not, and whose second round made it complete; so
  // pairs_covered + second_rounds = pairs. pairs_covered tells what interleaved would have reached.
  int64_t second_rounds = 0;
  // Of the pairs, those audited (see audit.h); certificates that said other than the exact ranking;
  // and the share of the exact top-K that attention read, summed.
  int64_t audited = 0;
  int64_t audit_wrong = 0;
  double audit_recall_sum = 0;
  bool has_coverage = false;  // false in exact and dense mode, where coverage says nothing

  void Add(const SelectionFigures& other) {
    pairs += other.pairs;
    pairs_covered += other.pairs_covered;
    queries += other.queries;
    queries_covered += other.queries_covered;
    union_sum += other.union_sum;
    planned_union_sum += other.planned_union_sum;
    imbalance_sum += other.imbalance_sum;
    second_rounds += other.second_rounds;
    audited += other.audited;
    audit_wrong += other.audit_wrong;
    audit_recall_sum += other.audit_recall_sum;
    has_coverage |= other.has_coverage;
  }
};

}  // namespace weft
