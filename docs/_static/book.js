// For readers who use a keyboard or a screen reader: what scrolls can be reached, and captions have a level.
document.addEventListener("DOMContentLoaded", () => {
  for (const block of document.querySelectorAll("pre, .table-wrapper")) block.tabIndex = 0;
  for (const caption of document.querySelectorAll("p.caption[role=heading]")) caption.setAttribute("aria-level", "2");
});
