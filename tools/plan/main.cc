// weft-plan: the selection planner. Exit codes: 0, and 2 for a bad command line.
#include <cstdio>

#include "tools/plan/options.h"
#include "tools/plan/report.h"

int main(int argc, char** argv) {
  using namespace weft::plan;
  Options options;
  const int code = ParseOptions(argc, argv, &options);
  if (code >= 0) return code;
  std::vector<Answer> answers;
  for (const Question& question : options.questions) answers.push_back(Solve(question));
  std::string text;
  if (options.json) {
    nlohmann::ordered_json json;
    for (const Answer& answer : answers) json["plans"].push_back(Json(answer));
    text = (answers.size() == 1 ? json["plans"][0] : json).dump(2) + "\n";
  } else {
    text = answers.size() == 1 ? Page(answers.front()) : Table(answers);
  }
  std::fputs(text.c_str(), stdout);
  return 0;
}
