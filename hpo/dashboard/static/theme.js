// Sets the theme before the page is painted: the user's choice, or the system's theme if there is none.
{
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage is blocked */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}
