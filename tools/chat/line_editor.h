// Lines from the terminal: with editing and history where libedit is there, plain ones otherwise.
#pragma once

#include <memory>
#include <string>

namespace weft::chat {

class LineEditor {
 public:
  enum class Kind { kLine, kInterrupted, kEnd };

  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  // Prompts go to stderr. `more`: the line goes on a text of several.
  Kind Read(bool more, std::string* text);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace weft::chat
