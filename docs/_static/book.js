// For readers who use a keyboard or a screen reader: what scrolls can be reached, and each part of a page has a name.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("pre, .table-wrapper")) block.tabIndex = 0;
  // A picture scrolls in its paragraph where the screen is narrow, and is no stop of the keyboard where it does not.
  for (const picture of document.querySelectorAll("article p > img:only-child")) {
    new ResizeObserver(() => {
      const frame = picture.parentElement;
      if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
      else frame.removeAttribute("tabindex");
    }).observe(picture.parentElement);
  }
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.setAttribute("aria-level", "2");
  for (const [part, name] of [["sidebar", "Pages of the book"], ["toc", "On this page"]]) {
    document.querySelector(`aside.${part}-drawer`)?.setAttribute("aria-label", name);
  }
  for (const head of document.querySelectorAll("th")) {
    if (!head.textContent.trim()) head.setAttribute("role", "presentation");
  }
  const results = document.getElementById("search-results");
  if (results && !document.querySelector("h1")) {
    const title = document.createElement("h1");
    title.textContent = "Search";
    results.before(title);
  }
  // A name in a narrow cell may break after a dot or an underscore, and nowhere else.
  for (const code of document.querySelectorAll("table.docutils td code")) {
    const texts = document.createTreeWalker(code, NodeFilter.SHOW_TEXT), found = [];
    while (texts.nextNode()) found.push(texts.currentNode);
    for (const text of found) {
      const parts = text.data.split(/(?<=[._=/])(?=.)/).flatMap((part) => [document.createElement("wbr"), part]);
      text.replaceWith(...parts.slice(1));
    }
  }
});
