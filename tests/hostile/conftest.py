"""The browser that pages are opened in."""

from tests.browsing import browser as browser
