"""First own tool in ten lines: run it with `turnlog worker examples.first_tool:tools`."""

from turnlog.tools import ToolContext, Toolset

tools = Toolset("weather", version="1")


@tools.tool(timeout_s=10)
async def forecast(ctx: ToolContext, city: str, days: int = 1) -> dict[str, str | int]:
    """Tomorrow's weather, or that of some days.

    Args:
        city: Its name, as people say it.
        days: How far to look ahead.
    """
    ctx.logger.info("asked for %s", city)
    return {"city": city, "days": days, "sky": "sunny"}
