// weft.v1.Inference, as proto/weft/v1/inference.proto states it.
#pragma once

#include <memory>

namespace grpc {
class Service;
}

namespace weft::server {

struct Frontend;

// `frontend` must outlive the service.
std::unique_ptr<grpc::Service> MakeInferenceService(Frontend* frontend);

}  // namespace weft::server
