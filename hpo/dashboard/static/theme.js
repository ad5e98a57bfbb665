// Before the page is painted: the theme that was chosen, or the system's.
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* nothing is kept here */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
