// What /set parameter and /show parameters speak of: the fields of a request's Sampling and
// Selection, by their names in inference.proto.
#pragma once

#include <string>

#include "weft/v1/inference.pb.h"

namespace weft::chat {

// Sets `name`, or with the value "default" clears it. False, with *error set, for an unknown name
// or a value of another type; ranges are the server's to check.
bool SetParameter(const std::string& name, const std::string& value, v1::ChatRequest* request,
                  std::string* error);

bool HasParameter(const std::string& name);

// "temperature, top_p, ..."
std::string ParameterNames();

// Lines "temperature 0.5" of what is set.
std::string ParametersText(const v1::ChatRequest& request);

}  // namespace weft::chat
