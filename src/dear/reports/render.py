"""Renders pages from Jinja templates; all inserted text is escaped, and a page loads nothing from elsewhere."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from dear.reports.colors import attribute_fill, head_fill, heat_fill, ink_on
from dear.reports.glossary import anchor
from dear.roles.grid import head_word, role_name
from dear.storage.files import visible

NAMESPACE = ' xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True)
class Picture:
    """An image on a page or a sheet, with a caption and an optional frame."""

    image: Image.Image
    caption: str = ""
    framed: bool = False


def render(template: str, /, **values: Any) -> str:
    """Render a template to one self-contained HTML page."""
    return _environment().get_template(template).render(values)


def data_url(image: Image.Image) -> str:
    """An image as a data URL (JPEG)."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def png_url(data: bytes) -> str:
    """The bytes of a PNG file as a data URL."""
    return "data:image/png;base64," + base64.b64encode(data).decode()


def chart_markup(chart: str) -> Markup:
    """A chart as markup for a page, without its namespace; the chart modules escape their own text."""
    return Markup(chart.replace(NAMESPACE, "", 1))


def _finalized(value: Any) -> Any:
    """Inserted text without control characters; markup stays as it is."""
    return visible(value) if type(value) is str else value


@cache
def _environment() -> Environment:
    loader = PackageLoader("dear.reports", "templates")
    environment = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_finalized,
    )
    environment.filters |= {
        "anchor": anchor,
        "attribute_fill": attribute_fill,
        "data_url": data_url,
        "chart_markup": chart_markup,
        "head_fill": head_fill,
        "head_word": head_word,
        "heat_fill": heat_fill,
        "ink_on": ink_on,
        "png_url": png_url,
        "role_name": role_name,
    }
    return environment
