// cuDNN's frontend headers, with what they need to load the library at run time and without their warnings.
#pragma once

#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#define CUDNN_FRONTEND_SKIP_JSON_LIB
#include <cudnn_frontend.h>
