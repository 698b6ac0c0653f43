from .kvcache import KVCache as KVCache
from .kvcache import kv_cache as kv_cache
from .limits import Largest as Largest
from .limits import largest_concurrency as largest_concurrency
from .limits import largest_context as largest_context
from .requests import Request as Request
from .requests import request as request
