"""What a tool team imports: a toolset, its decorator, the call's context, and the failure it may raise.

    tools = Toolset("billing", version="3")

    @tools.tool(timeout_s=30)
    async def refund(ctx: ToolContext, order_id: str, amount: Decimal) -> Refund: ...

Nothing here knows Kafka: functions can be called and tested as they are. `turnlog.tools.worker` runs them.
"""

from turnlog.tools.context import ToolContext
from turnlog.tools.failures import ToolFailure
from turnlog.tools.toolset import Tool, ToolDefinitionError, Toolset

__all__ = ["Tool", "ToolContext", "ToolDefinitionError", "ToolFailure", "Toolset"]
