"""Items: JSON documents under a namespace and a key, whose texts are facts of the memory. See ``store.ItemStore``."""

from inferscale_memory.items.models import FoundItem, Item, Namespace, Put, Query
from inferscale_memory.items.namespaces import Pattern, ScopeOf, user_of

__all__ = ["FoundItem", "Item", "Namespace", "Pattern", "Put", "Query", "ScopeOf", "user_of"]
