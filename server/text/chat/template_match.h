// Which chat encoding a model folder asks for.
//
// Templates are not run: the ones that are known are recognised by their text, and for another one
// the closest encoding is taken by the marks it holds, with a warning.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "server/text/json_file.h"

namespace weft::text {

struct ChatChoice {
  std::string encoding;  // "": none is known
  std::string warning;   // for the operator; "": nothing to say
};

// The folder's template (chat_template.jinja, or tokenizer_config.json's chat_template), then
// model_type, decide. Throws std::runtime_error when a template cannot be read.
ChatChoice ChooseChatEncoding(const std::filesystem::path& folder, const JsonFile& tokenizer_config,
                              std::string_view model_type);

}  // namespace weft::text
