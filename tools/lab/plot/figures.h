// The study's figures, for one G each: a column of panels per field.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/lab/study/study.h"

namespace weft::lab {

// List lengths from ceil(K/G) on, for a curve: at most 32, the planner's m among them.
std::vector<int64_t> SweepLengths(const Spec& spec, int64_t G);

// Coverage and recall over m, a line per placement, the planner's curve dashed on top. `rows`:
// interleaved, all of one G, over several m.
std::string CurveFigure(const Spec& spec, int64_t G, const std::vector<Row>& rows);

// Mean load of the fullest rank, the second fullest, ..., by placement: what a list of `m` loses is
// red. `rows` as above, of which one m is used.
std::string LoadFigure(const Spec& spec, int64_t G, int64_t m, const std::vector<Row>& rows);

// Tokens in attention, bytes by exchange and second rounds over m: certified, a line per placement,
// beside interleaved and exact. `rows`: of these three modes and one G, over several m.
std::string CostFigure(const Spec& spec, int64_t G, const std::vector<Row>& rows);

}  // namespace weft::lab
