// The study's rows as a table to read and as CSV.
#pragma once

#include <string>
#include <vector>

#include "tools/lab/study/study.h"

namespace weft::lab {

std::string TableText(const std::vector<Row>& rows);

// One line per row under a header; a figure over no pair at all is empty.
std::string Csv(const std::vector<Row>& rows);

}  // namespace weft::lab
