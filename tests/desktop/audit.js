// What is wrong with the page as it stands, one sentence each: contrast, width, names. Run by the states' test.
const done = arguments[arguments.length - 1];
const wrong = [];
const isShown = (element) =>
  element.checkVisibility({ visibilityProperty: true }) && element.closest(".heard") === null;
const told = (element) =>
  `${element.tagName.toLowerCase()}#${element.id || element.parentElement?.id} "${(element.textContent ?? "").slice(0, 40)}"`;

// Nothing is wider than the window, but for what scrolls by itself.
const width = document.documentElement.clientWidth;
if (document.documentElement.scrollWidth > width)
  wrong.push(`the page is ${document.documentElement.scrollWidth} wide in ${width}`);
for (const element of document.querySelectorAll("body *")) {
  if (!isShown(element) || element.closest(".scrolls") !== null) continue;
  const box = element.getBoundingClientRect();
  if (box.right > width + 1 || box.left < -1)
    wrong.push(`${told(element)} reaches from ${box.left} to ${box.right} in ${width}`);
}

// WCAG's contrast of each text with what is behind it, 4.5 to 1, for large letters 3 to 1.
const parts = (color) => (color.match(/[\d.]+/g) ?? []).map(Number);
const light = (color) => {
  const [r, g, b] = parts(color).map((part) =>
    part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4,
  );
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const behind = (element) => {
  for (let at = element; at !== null; at = at.parentElement) {
    const color = getComputedStyle(at).backgroundColor;
    const alpha = parts(color)[3] ?? 1;
    if (alpha === 1) return color;
    if (alpha > 0) wrong.push(`${told(at)} has a background that shines through`);
  }
  return "rgb(255, 255, 255)";
};
const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
let seen = 0;
while (texts.nextNode()) {
  const element = texts.currentNode.parentElement;
  if (texts.currentNode.data.trim() === "" || !isShown(element)) continue;
  // What is switched off may be faint.
  if (element.closest(":disabled, option, title") !== null) continue;
  seen++;
  const style = getComputedStyle(element);
  const ink = element instanceof SVGElement ? style.fill : style.color;
  const [a, b] = [light(ink), light(behind(element))].sort((x, y) => y - x);
  const size = parseFloat(style.fontSize);
  const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
  const ratio = (a + 0.05) / (b + 0.05);
  if (ratio < (isLarge ? 3 : 4.5)) wrong.push(`${told(element)} has a contrast of ${ratio.toFixed(2)}`);
}
if (seen < 5) wrong.push(`only ${seen} texts`);

// Whatever can be used has a name that a screen reader can say, and ids are given once.
for (const control of document.querySelectorAll("button, a, input, select, textarea, summary, [role=img]")) {
  if (!isShown(control)) continue;
  const label = control.id ? document.querySelector(`label[for="${control.id}"]`) : null;
  const name = [
    control.getAttribute("aria-label"),
    label?.textContent,
    control.closest("label")?.textContent,
    control.textContent,
  ];
  if (!name.some((text) => (text ?? "").trim() !== "")) wrong.push(`${told(control)} has no name`);
}
const ids = [...document.querySelectorAll("[id]")].map((element) => element.id);
for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) wrong.push(`two elements are #${id}`);
done(wrong);
